"""Confirms to the store which messages the broker has accepted: soon, in batches, and without delaying the caller.

A duplicate that finds a queued entry without a confirmation publishes its message again, in case it was never sent. So
a confirmation that comes late, or never, costs one copy that some worker drops, and nothing else.
"""

from __future__ import annotations

import atexit
import logging
import time
from itertools import groupby

from taskguard.errors import StoreError
from taskguard.protocol.store import Claimant, Store
from taskguard.runtime.alarm import Alarm
from taskguard.runtime.clocks import since_boot
from taskguard.runtime.forks import Forked, Living, watch_forks

GATHER = 0.05
"""Seconds for which confirmations are batched."""
RECENT = 2.0
"""Seconds for which a sent confirmation is remembered here: an answer of the store may be older than it."""
PATIENCE = 1.0
"""Seconds that `finish` waits for a store that does not answer: a lost confirmation costs only a dropped copy."""
MOST = 200
"""The most confirmations in one exchange."""

_logger = logging.getLogger("taskguard")


class Confirmations(Forked):
    """Uses no lock: a signal handler or a finalizer may publish at any step. Each change is one dict operation."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.after_fork()
        watch_forks(self)
        _all.add(self)

    def after_fork(self) -> None:
        self._due: float | None = None
        self._waiting: dict[str, tuple[Claimant, float, float]] = {}
        self._recent: dict[str, tuple[float, float]] = {}  # the oldest first
        self._alarm = Alarm(self._work, self._upcoming)

    def add(self, claimant: Claimant, seconds: float, copy_for: float) -> None:
        """The broker has the message of this queued entry: see `Store.mark`."""
        self._waiting[claimant.owner] = (claimant, seconds, copy_for)
        due = self._due
        if due is None:
            due = self._due = since_boot() + GATHER
        self._alarm.ring_by(due)  # each time: a signal may have interrupted the caller that set `_due`

    def knows(self, owner: str) -> bool:
        """Whether this process has published that job's message: the store may not have the confirmation yet."""
        if owner in self._waiting:
            return True
        sent, copy_for = self._recent.get(owner, (float("-inf"), 0.0))
        return since_boot() - sent < min(RECENT, copy_for / 2)  # long before it counts as lost

    def send(self) -> None:
        self._due = None  # before they are listed: one that arrives now schedules the next exchange
        waiting = sorted(self._waiting.values(), key=lambda mark: mark[2])
        for copy_for, alike in groupby(waiting, key=lambda mark: mark[2]):
            batch = list(alike)
            for start in range(0, len(batch), MOST):
                self._send(batch[start : start + MOST], copy_for)

    def _send(self, batch: list[tuple[Claimant, float, float]], copy_for: float) -> None:
        try:
            self._store.mark([(claimant, seconds) for claimant, seconds, _ in batch], copy_for=copy_for)
        except StoreError as error:
            _logger.debug("could not confirm %d published messages: %s", len(batch), error)
        now = since_boot()
        for confirmation in batch:
            owner = confirmation[0].owner
            self._recent.pop(owner, None)
            self._recent[owner] = (now, copy_for)
            newer = self._waiting.pop(owner, confirmation)
            if newer is not confirmation:  # it was published again in the meantime
                self._waiting.setdefault(owner, newer)
        for owner in list(self._recent):  # not its items: a new tuple may start the collector, and so any finalizer
            if now - self._recent.get(owner, (0.0, 0.0))[0] <= RECENT:
                break
            self._recent.pop(owner, None)

    def _upcoming(self) -> float | None:
        return self._due

    def finish(self) -> None:
        """Wait until the thread has sent all confirmations, so that the store can be closed."""
        give_up = since_boot() + PATIENCE
        while self._waiting and since_boot() < give_up:
            due = self._due = since_boot()
            self._alarm.ring_by(due)
            time.sleep(GATHER / 10)

    def _work(self, now: float) -> None:
        if self._due is not None and self._due <= now:
            self.send()


_all: Living[Confirmations] = Living()


@atexit.register
def _send_all() -> None:
    for confirmations in _all.all():
        if confirmations._waiting:
            confirmations.send()
