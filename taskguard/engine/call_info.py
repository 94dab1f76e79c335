"""What a caller gets: a handle that says whether the call was a duplicate, of which job, and since when."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallInfo:
    """`.taskguard` of the handle that a guarded call returns."""

    key: str
    owner: str
    """The id of the job that this handle is for: the call's own, or the holder's."""
    duplicate: bool = False
    state: str = "queued"
    """Of the job; "unclaimed" if the store did not answer, so that its worker is the first to ask for the key."""
    since: float = 0.0
