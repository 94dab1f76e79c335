"""What a caller learns: the handle it gets says whether its call was a duplicate, of whom, and since when."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallInfo:
    """`.taskguard` of the handle that a guarded call returns."""

    key: str
    owner: str
    """Whose handle this is: the call's own id, or its twin's."""
    duplicate: bool = False
    state: str = "queued"
    """Of the job; "unclaimed" if the store did not answer, so that its worker is the first to ask for the key."""
    since: float = 0.0
