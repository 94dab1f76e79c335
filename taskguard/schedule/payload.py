"""What the entry of a run says of it: which slot it is for, and whether schedulers may bring it back if it dies.

The latter is known to the worker alone, which says so when it begins: the queue keeps the message until the job has
ended, and it is the one that the schedule made. A run whose message was acknowledged before it began is gone with its
worker, as any job of such a task. And a retry counts tries, and may have other arguments, of which a scheduler knows
nothing: its own message comes again, or none.
"""

from __future__ import annotations

_KEPT = "+"


def write(at: int, *, kept: bool = False) -> str:
    return f"{at}{_KEPT}" if kept else str(at)


def slot_in(payload: str) -> int | None:
    """The moment of the slot; None if it is not the payload of a scheduled run."""
    digits = payload.removesuffix(_KEPT)
    return int(digits) if digits.isdigit() else None


def is_kept(payload: str) -> bool:
    """Whether the run is to come again if its worker dies."""
    return payload.endswith(_KEPT)
