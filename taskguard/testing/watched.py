"""A store in memory that records every run."""

from __future__ import annotations

from collections.abc import Callable

from taskguard.protocol.rules import Rules
from taskguard.protocol.store import Claim, Claimant, Completed, Ending, Held, Lease
from taskguard.stores.memory import MemoryStore, wall_clock


class WatchedStore(MemoryStore):
    """The store that `assert_ran_once` reads. With a `FakeClock`, leases expire when you advance it."""

    def __init__(self, *, clock: Callable[[], int] = wall_clock, rules: Rules | None = None) -> None:
        super().__init__(clock=clock, rules=rules)
        self.runs: list[Lease] = []
        """The lease of each run, in order."""
        self.ends: dict[str, str] = {}
        """How each run ended, by its attempt. A run that has not ended is missing."""

    def __repr__(self) -> str:
        return "WatchedStore()"

    def claim(self, claim: Claim, /) -> Lease | Held | Completed:
        answer = super().claim(claim)
        if isinstance(answer, Lease) and answer.state == "running" and not self._knows(answer):
            self.runs.append(answer)
        return answer

    def complete(self, claimant: Claimant, ending: Ending, /) -> bool:
        return self._record(claimant, ending, super().complete(claimant, ending))

    def release(self, claimant: Claimant, ending: Ending, /, *, anyway: bool = False) -> bool:
        return self._record(claimant, ending, super().release(claimant, ending, anyway=anyway))

    def requeue(
        self, claimant: Claimant, seconds: float, /, *, copy_for: float, keep_starts: bool = False, copy: str = ""
    ) -> bool:
        done = super().requeue(claimant, seconds, copy_for=copy_for, keep_starts=keep_starts, copy=copy)
        if done:
            self.ends.setdefault(claimant.attempt, "requeued")
        return done

    def _knows(self, lease: Lease) -> bool:
        # A claim repeated after a lost reply is the same run.
        return any(run.attempt == lease.attempt and run.token == lease.token for run in self.runs)

    def _record(self, claimant: Claimant, ending: Ending, done: bool) -> bool:
        self.ends.setdefault(claimant.attempt, ending.how if done else "refused")
        return done
