"""What the entry of a run says of it: which slot it is for, and whether its queue keeps the message until it has ended.

The latter is known to the worker alone, which says so when it begins. A run whose message was acknowledged before it
began is gone with its worker, as any job of such a task; schedulers must not bring it back.
"""

from __future__ import annotations

from taskguard.store import Entry

_KEPT = "+"


def write(at: int, *, kept: bool = False) -> str:
    return f"{at}{_KEPT}" if kept else str(at)


def slot_in(run: Entry) -> int | None:
    """The moment of the slot; None if the entry is not that of a scheduled run."""
    digits = run.payload.removesuffix(_KEPT)
    return int(digits) if digits.isdigit() else None


def is_kept(run: Entry) -> bool:
    """Whether the run's message is kept until it has ended: if its worker dies, it is to come again."""
    return run.payload.endswith(_KEPT)
