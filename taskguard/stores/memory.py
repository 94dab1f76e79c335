"""Entries in this process: for tests, and for one process that wants its own threads to do a thing once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

from taskguard import native
from taskguard.errors import ConfigurationError
from taskguard.forks import Forked, watch_forks
from taskguard.rules import Kept, Receipt, Rules, Step, seen
from taskguard.store import Claim, Claimant, Completed, Ending, Entry, Guarantees, Held, Lease
from taskguard.stores.histories.memory import MemoryHistory

Answer = TypeVar("Answer")

PURGE_EVERY = 256
"""Verbs between two looks for what is over: nothing grows without end, and no verb pays for it alone."""


def wall_clock() -> int:
    return time.time_ns() // 1000


def from_url(url: str, *, namespace: str) -> MemoryStore:
    if urlsplit(url).netloc or urlsplit(url).path:
        raise ConfigurationError("memory:// takes no address: each store opened so is a new, empty one")
    return MemoryStore()


class MemoryStore(Forked):
    """One dictionary under one lock."""

    guarantees = Guarantees(
        survives_restart="no",
        survives_failover="not applicable",
        linearizable=True,
        clock="the host's",
        note="one process only: a forked child has a copy of its own",
    )

    def __init__(self, *, clock: Callable[[], int] = wall_clock, rules: Rules | None = None) -> None:
        self._clock = clock
        self._rules = rules or Rules()
        self._lock = native.allocate_lock()
        self._entries: dict[str, Kept] = {}
        self._receipts: dict[tuple[str, str], Receipt] = {}
        self._until_purge = PURGE_EVERY
        self.history = MemoryHistory(clock)
        watch_forks(self)

    def __repr__(self) -> str:
        return "MemoryStore()"

    def claim(self, claim: Claim, /) -> Lease | Held | Completed:
        with self._lock:
            now = self._clock()
            own = self._receipt(claim.key, claim.owner, now)
            twin = self._receipt(claim.key, claim.join, now) if claim.join else None
            return self._save(claim, self._rules.claim(claim, self._entry(claim.key, now), own, twin, now))

    def renew(self, leases: Sequence[tuple[Lease, float]], /) -> list[bool]:
        with self._lock:
            now = self._clock()
            return [
                self._save(lease, self._rules.renew(lease, seconds, self._entry(lease.key, now), now))
                for lease, seconds in leases
            ]

    def requeue(
        self, claimant: Claimant, seconds: float, /, *, copy_for: float, keep_starts: bool = False, copy: str = ""
    ) -> bool:
        with self._lock:
            now = self._clock()
            entry = self._entry(claimant.key, now)
            own = self._receipt(claimant.key, claimant.owner, now)
            step = self._rules.requeue(
                claimant, seconds, entry, now, own=own, copy_for=copy_for, keep_starts=keep_starts, copy=copy
            )
            return self._save(claimant, step)

    def mark(self, published: Sequence[tuple[Claimant, float]], /, *, copy_for: float) -> list[bool]:
        with self._lock:
            now = self._clock()
            return [self._mark(claimant, seconds, copy_for, now) for claimant, seconds in published]

    def _mark(self, claimant: Claimant, seconds: float, copy_for: float, now: int) -> bool:
        entry = self._entry(claimant.key, now)
        own = self._receipt(claimant.key, claimant.owner, now)
        return self._save(claimant, self._rules.mark(claimant, seconds, entry, now, own=own, copy_for=copy_for))

    def complete(self, claimant: Claimant, ending: Ending, /) -> bool:
        with self._lock:
            now = self._clock()
            own = self._receipt(claimant.key, claimant.owner, now)
            entry = self._entry(claimant.key, now)
            return self._save(claimant, self._rules.complete(claimant, ending, entry, own, now))

    def release(self, claimant: Claimant, ending: Ending, /, *, anyway: bool = False) -> bool:
        with self._lock:
            now = self._clock()
            own = self._receipt(claimant.key, claimant.owner, now)
            entry = self._entry(claimant.key, now)
            return self._save(claimant, self._rules.release(claimant, ending, entry, own, now, anyway=anyway))

    def get(self, key: str, /) -> Entry | None:
        with self._lock:
            now = self._clock()
            entry = self._entry(key, now)
            return seen(key, entry, now) if entry else None

    def scan(self, prefix: str = "", /) -> Iterator[Entry]:
        with self._lock:
            keys = [key for key in self._entries if key.startswith(prefix)]
        return (entry for key in keys if (entry := self.get(key)))

    def forget(self, key: str, /, token: int = 0) -> bool:
        with self._lock:
            now = self._clock()
            step = self._rules.forget(self._entry(key, now), token, now)
            return self._save(Claimant(key, "", ""), step)

    def close(self) -> None:
        """Nothing is open."""

    def after_fork(self) -> None:
        self._lock = native.allocate_lock()

    def _entry(self, key: str, now: int) -> Kept | None:
        entry = self._entries.get(key)
        return entry if entry and entry.gone_at > now else None

    def _receipt(self, key: str, owner: str, now: int) -> Receipt | None:
        receipt = self._receipts.get((key, owner))
        return receipt if receipt and receipt.until > now else None

    def _save(self, claimant: Claimant, step: Step[Answer]) -> Answer:
        if step.entry is not None:
            self._entries[claimant.key] = step.entry
        if step.receipt is not None:
            self._receipts[claimant.key, step.receipt.owner] = step.receipt
        self._until_purge -= 1
        if self._until_purge <= 0:
            self._purge(self._clock())
        return step.answer

    def _purge(self, now: int) -> None:
        self._until_purge = max(PURGE_EVERY, len(self._entries))
        self._entries = {key: entry for key, entry in self._entries.items() if entry.gone_at > now}
        self._receipts = {key: receipt for key, receipt in self._receipts.items() if receipt.until > now}
