"""What a store keeps of a key and of a job's end, and what a verb changes. Times are microseconds of its clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from taskguard.protocol.store import How, State

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Kept:
    """An entry as a store keeps it."""

    state: State
    owner: str
    attempt: str
    token: int
    since: int
    until: int
    """queued, running: when the claim expires. free, done: when the entry is deleted."""
    keep: int
    """How long an expired claim is still kept."""
    starts: int = 0
    took_over: bool = False
    payload: str = ""
    copy: str = ""
    copies: int = 0
    copy_until: int = 0
    """Until then no duplicate publishes; 0 as long as no publication is known."""
    held_until: int = 0
    """free, done: other owners are kept out until then."""
    requeued_by: str = ""
    """The attempt that last requeued the job: if it repeats the call, it gets the same answer."""
    deaths: tuple[tuple[str, int, str], ...] = ()
    """Owners that lost the key without an end, with their starts (so that a job which kills its workers stays counted)
    and their payload."""
    how: How | None = None
    outcome: bytes | None = None
    label: str = ""
    where: str = ""

    @property
    def gone_at(self) -> int:
        return self.until + self.keep if self.state in ("queued", "running") else self.until


@dataclass(frozen=True, slots=True)
class Receipt:
    """How one job ended, kept under its own id whoever holds the key by then.

    "released" is not an end: the job may be claimed again. Neither a plain release nor an end reported without the
    lease (`release(anyway=True)`) replaces an end: the first one stays. Only the holder of the newest lease replaces
    it, by reporting its own run: if another worker revoked the job and it still ran to its end, that end counts.
    """

    owner: str
    attempt: str
    how: How
    token: int
    at: int
    until: int
    outcome: bytes | None = None
    twin: str = ""
    """skipped: the holder it was skipped for. succeeded, failed: the holder that this job joined and ended with."""
    answered: bool = False


@dataclass(frozen=True, slots=True)
class Step(Generic[Answer]):
    """What a verb returns, and the new entry and owner's receipt (None: unchanged)."""

    answer: Answer
    entry: Kept | None = None
    receipt: Receipt | None = None


def stamp_of(entry: Kept) -> str:
    """Changes with each grant of the key and each named copy."""
    return f"{entry.token}:{entry.copy_until}"
