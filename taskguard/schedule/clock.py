"""The clock that decides when slots are due: the store's, if its server has one.

If schedulers used their own clocks, the fastest clock would fire each slot too early, and a scheduler whose clock is
set an hour forward would settle the slots of that hour. So each scheduler reads the store's time now and then, and
measures elapsed time in between. If the store uses the host's clock (SQLite) or has none, a slot may fire early by the
error of the fastest scheduler, but still only once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from taskguard.guard import new_attempt
from taskguard.protocol.store import Claim, Store
from taskguard.runtime.clocks import since_boot
from taskguard.schedule.boundaries import MICROS
from taskguard.schedule.entry import PREFIX

ASK_AGAIN = 30.0
WORST_ROUND_TRIP = 0.5
"""A slower answer is too imprecise, unless it is the first one."""
ANSWER_KEPT = 10.0


def _wall_clock() -> int:
    return time.time_ns() // 1000


class StoreClock:
    def __init__(
        self, store: Store, wall: Callable[[], int] = _wall_clock, elapsed: Callable[[], float] = since_boot
    ) -> None:
        self._store = store
        self._wall = wall
        self._elapsed = elapsed
        self._start: int | None = None
        """The store's time when the elapsed time was zero."""
        self._ask_at = float("-inf")

    @property
    def offset(self) -> float:
        """By how many seconds this host's clock is behind the store's."""
        return (self.now() - self._wall()) / MICROS

    def now(self) -> int:
        """Microseconds since 1970, by the store's clock if it is known."""
        if self._store.guarantees.clock != "the server's":
            return self._wall()
        if self._start is None or self._elapsed() > self._ask_at:
            self._start = self._ask(self._start)
        return self._start + round(self._elapsed() * MICROS)

    def last_known(self) -> int:
        """The same as far as it is known without a question to the store."""
        return self._wall() if self._start is None else self._start + round(self._elapsed() * MICROS)

    def _ask(self, known: int | None) -> int:
        # A new key each time: after the store's clock was set back, an older claim would return its own, later time.
        key = f"{PREFIX}clock:{new_attempt()}"
        claim = Claim(key, "clock", new_attempt(), lease=0.001, keep_for=ANSWER_KEPT)
        left = self._elapsed()
        self._store.claim(claim)
        took = self._elapsed() - left
        found = self._store.get(key)
        is_good = found is not None and took <= WORST_ROUND_TRIP
        self._ask_at = self._elapsed() + (ASK_AGAIN if is_good else 1.0)
        if found is not None and (is_good or known is None):
            return round((found.since - left - took / 2) * MICROS)
        return self._wall() - round(self._elapsed() * MICROS) if known is None else known
