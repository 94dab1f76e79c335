"""The time by which slots are due: the store's, where it has a clock of its own.

Schedulers whose clocks differ would fire a slot as early as the fastest of them is ahead. Each asks the store what time
it is, now and then, and goes by the difference. Where the store's clock is the host's own (SQLite), or it has none,
that difference is nothing, and a slot may fire early by the error of the fastest scheduler; once, all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from taskguard.clocks import since_boot
from taskguard.guard import new_attempt
from taskguard.schedule.boundaries import MICROS
from taskguard.schedule.entry import PREFIX
from taskguard.store import Claim, Store

ASK_AGAIN = 30.0
WORST_ROUND_TRIP = 0.5
"""An answer that took longer says too little about the time."""


def _wall_clock() -> int:
    return time.time_ns() // 1000


class StoreClock:
    def __init__(self, store: Store, wall: Callable[[], int] = _wall_clock) -> None:
        self._store = store
        self._wall = wall
        self._key = f"{PREFIX}clock:{new_attempt()}"
        self._offset = 0
        self._asked = float("-inf")

    @property
    def offset(self) -> float:
        """Seconds that this host's clock is behind the store's."""
        return self._offset / MICROS

    def now(self) -> int:
        """Microseconds since 1970, by the store's clock as far as it is known."""
        if self._store.guarantees.clock == "the server's" and since_boot() - self._asked > ASK_AGAIN:
            self._ask()
        return self._wall() + self._offset

    def _ask(self) -> None:
        claim = Claim(self._key, "clock", new_attempt(), lease=0.001, keep_for=2 * ASK_AGAIN)
        left, wall = since_boot(), self._wall()
        self._store.claim(claim)
        took = since_boot() - left
        found = self._store.get(self._key)
        if found is not None and took <= WORST_ROUND_TRIP:
            self._offset = round(found.since * MICROS - wall - took * MICROS / 2)
            self._asked = since_boot()
        else:
            self._asked = since_boot() - ASK_AGAIN + 1.0
