"""Confirms to the store which messages the broker has accepted: soon, in batches, and not at the caller's cost.

If a duplicate finds a queued entry without a confirmation, it republishes the message, in case it never left. So a late
or lost confirmation costs one copy, which some worker drops.
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
"""Seconds for which confirmations are gathered into a batch."""
RECENT = 2.0
"""Seconds for which a sent confirmation is remembered: an answer of the store may be older."""
PATIENCE = 1.0
"""Seconds that `finish` waits for an unavailable store: a lost confirmation costs one copy."""
MOST = 200
"""The largest batch."""

_logger = logging.getLogger("taskguard")


class Confirmations(Forked):
    """Without a lock, since a signal handler or a finalizer may publish at any step: each change is one of a dict's."""

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
        self._alarm.ring_by(due)  # also for one that is due: whoever was to ring may have been torn away by a signal

    def knows(self, owner: str) -> bool:
        """Whether this process published that job's message: the store may not have the confirmation yet."""
        if owner in self._waiting:
            return True
        sent, copy_for = self._recent.get(owner, (float("-inf"), 0.0))
        return since_boot() - sent < min(RECENT, copy_for / 2)  # long before it counts as lost

    def send(self) -> None:
        self._due = None  # before they are listed: one that comes meanwhile asks for the next time
        waiting = sorted(self._waiting.values(), key=lambda confirmation: confirmation[2])
        for copy_for, alike in groupby(waiting, key=lambda confirmation: confirmation[2]):
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
            if newer is not confirmation:  # it was published again meanwhile
                self._waiting.setdefault(owner, newer)
        for owner in list(self._recent):  # not of its items: to make a tuple may call the collector, and that anybody
            if now - self._recent.get(owner, (0.0, 0.0))[0] <= RECENT:
                break
            self._recent.pop(owner, None)

    def _upcoming(self) -> float | None:
        return self._due

    def finish(self) -> None:
        """Wait until the thread has sent what was gathered, so that the store can be closed."""
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
