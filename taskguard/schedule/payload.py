"""The payload of a run's entry: which slot it is for, and whether schedulers may republish it if its worker dies.

Only the worker knows the latter, and records it when it starts the run. Schedulers may republish if the queue keeps the
message until the job has ended, and the message is the one that the schedule made. A run whose message was acknowledged
before it started is lost with its worker, like any job of such a task. A retry counts tries and may have other
arguments, which a scheduler does not know: only the queue can redeliver its message.
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
    """Whether the run must come again if its worker dies."""
    return payload.endswith(_KEPT)
