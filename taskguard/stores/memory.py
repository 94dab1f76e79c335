"""Entries in this process: for tests, and for one process whose threads must do something once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

from taskguard.errors import ConfigurationError
from taskguard.protocol.rules import Kept, Receipt, Rules, Step, seen
from taskguard.protocol.store import Claim, Claimant, Completed, Ending, Entry, Guarantees, Held, Lease
from taskguard.stores.atomic import AtomicDict
from taskguard.stores.histories.memory import MemoryHistory

Answer = TypeVar("Answer")

PURGE_EVERY = 256
"""Verbs between two purges: nothing grows without bound, and no verb pays for it alone."""


def wall_clock() -> int:
    return time.time_ns() // 1000


def from_url(url: str, *, namespace: str) -> MemoryStore:
    if urlsplit(url).netloc or urlsplit(url).path:
        raise ConfigurationError("memory:// takes no address, since each store is new and empty; write memory://")
    return MemoryStore()


class MemoryStore:
    """One dictionary. An entry is kept under its key, a receipt under its key and owner."""

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
        self._kept = AtomicDict()
        self._until_purge = PURGE_EVERY
        self.history = MemoryHistory(clock)

    def __repr__(self) -> str:
        return "MemoryStore()"

    def claim(self, claim: Claim, /) -> Lease | Held | Completed:
        def verb(view: _View) -> Lease | Held | Completed:
            own = view.receipt(claim.key, claim.owner)
            joined = view.receipt(claim.key, claim.join) if claim.join else None
            return view.save(claim.key, self._rules.claim(claim, view.entry(claim.key), own, joined, view.now))

        return self._step(verb)

    def renew(self, leases: Sequence[tuple[Lease, float]], /) -> list[bool]:
        def verb(view: _View) -> list[bool]:
            return [
                view.save(lease.key, self._rules.renew(lease, seconds, view.entry(lease.key), view.now))
                for lease, seconds in leases
            ]

        return self._step(verb)

    def requeue(
        self, claimant: Claimant, seconds: float, /, *, copy_for: float, keep_starts: bool = False, copy: str = ""
    ) -> bool:
        def verb(view: _View) -> bool:
            entry = view.entry(claimant.key)
            own = view.receipt(claimant.key, claimant.owner)
            step = self._rules.requeue(
                claimant, seconds, entry, view.now, own=own, copy_for=copy_for, keep_starts=keep_starts, copy=copy
            )
            return view.save(claimant.key, step)

        return self._step(verb)

    def mark(self, published: Sequence[tuple[Claimant, float]], /, *, copy_for: float) -> list[bool]:
        def marked(view: _View, claimant: Claimant, seconds: float) -> bool:
            entry = view.entry(claimant.key)
            own = view.receipt(claimant.key, claimant.owner)
            step = self._rules.mark(claimant, seconds, entry, view.now, own=own, copy_for=copy_for)
            return view.save(claimant.key, step)

        return self._step(lambda view: [marked(view, claimant, seconds) for claimant, seconds in published])

    def complete(self, claimant: Claimant, ending: Ending, /) -> bool:
        def verb(view: _View) -> bool:
            own = view.receipt(claimant.key, claimant.owner)
            entry = view.entry(claimant.key)
            return view.save(claimant.key, self._rules.complete(claimant, ending, entry, own, view.now))

        return self._step(verb)

    def release(self, claimant: Claimant, ending: Ending, /, *, anyway: bool = False) -> bool:
        def verb(view: _View) -> bool:
            own = view.receipt(claimant.key, claimant.owner)
            entry = view.entry(claimant.key)
            return view.save(claimant.key, self._rules.release(claimant, ending, entry, own, view.now, anyway=anyway))

        return self._step(verb)

    def get(self, key: str, /) -> Entry | None:
        now = self._clock()
        entry = self._view({}, now).entry(key)
        return seen(key, entry, now) if entry else None

    def scan(self, prefix: str = "", /) -> Iterator[Entry]:
        keys = [key for key in list(self._kept.items) if isinstance(key, str) and key.startswith(prefix)]
        return (entry for key in keys if (entry := self.get(key)))

    def forget(self, key: str, /, token: int = 0) -> bool:
        return self._step(lambda view: view.save(key, self._rules.forget(view.entry(key), token, view.now)))

    def close(self) -> None:
        """Nothing is open."""

    def _step(self, verb: Callable[[_View], Answer]) -> Answer:
        answer = self._kept.step(lambda changes: verb(self._view(changes, self._clock())))
        self._until_purge -= 1
        if self._until_purge <= 0:
            self._until_purge = max(PURGE_EVERY, len(self._kept.items))
            now = self._clock()
            self._kept.purge(lambda kept: not self._is_there(kept, now))
        return answer

    def _view(self, changes: dict[Any, Any], now: int) -> _View:
        return _View(self._kept.items, changes, now, self._is_there)

    def _is_there(self, kept: Kept | Receipt, now: int) -> bool:
        return (kept.gone_at if isinstance(kept, Kept) else kept.until) > now


class _View:
    """What one verb reads and changes, at one time."""

    def __init__(
        self, items: dict[Any, Any], changes: dict[Any, Any], now: int, is_there: Callable[[Any, int], bool]
    ) -> None:
        self._items, self._changes, self.now, self._is_there = items, changes, now, is_there

    def entry(self, key: str) -> Kept | None:
        entry: Kept | None = self._found(key)
        return entry

    def receipt(self, key: str, owner: str) -> Receipt | None:
        receipt: Receipt | None = self._found((key, owner))
        return receipt

    def _found(self, name: Any) -> Any:
        kept = self._changes.get(name) or self._items.get(name)
        return kept if kept and self._is_there(kept, self.now) else None

    def save(self, key: str, step: Step[Answer]) -> Answer:
        if step.entry is not None:
            self._changes[key] = step.entry
        if step.receipt is not None:
            self._changes[key, step.receipt.owner] = step.receipt
        return step.answer
