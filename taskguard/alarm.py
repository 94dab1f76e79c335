"""A thread of the operating system that works whenever a moment has come, and sleeps between."""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable

from taskguard import interrupt, native
from taskguard.clocks import since_boot
from taskguard.living import Living

LONGEST_SLEEP = 3600.0
IDLE = 60.0
"""With nothing to wait for so long, the thread ends; the next moment starts another."""

_logger = logging.getLogger("taskguard")


class Alarm:
    """A thread that calls *work* whenever the moment that *upcoming* names has come."""

    def __init__(self, work: Callable[[float], None], upcoming: Callable[[], float | None]) -> None:
        self._work = work
        self._upcoming = upcoming
        self._state = native.allocate_lock()
        self._bell = native.allocate_lock()
        self._bell.acquire()
        self._sleeps_until: float | None = None
        self._started = False
        self._stopped = False
        _alarms.add(self)

    def ring_by(self, moment: float) -> None:
        with self._state:
            if not self._started:
                native.start_thread(self._run)
                self._started = True
            elif self._sleeps_until is not None and moment < self._sleeps_until and self._bell.locked():
                self._bell.release()

    def stop(self) -> None:
        """The process ends: a thread that is frozen with a lock in its hands would keep others waiting for it."""
        self._stopped = True
        self.ring_by(0.0)

    def _run(self) -> None:
        interrupt.leave_signals_to_others()
        while self._slept() and not self._stopped:
            try:
                self._work(since_boot())
            except BaseException:  # if it died, all leases would go with it
                _logger.exception("a thread of the guard goes on after an error of its own")

    def _slept(self) -> bool:
        """Wait for the next moment; False if there was none to wait for, and the thread is to end."""
        with self._state:
            upcoming = self._upcoming()
            now = since_boot()
            self._sleeps_until = now + IDLE if upcoming is None else min(upcoming, now + LONGEST_SLEEP)
            pause = self._sleeps_until - now
        rang = pause <= 0 or self._bell.acquire(True, pause)
        with self._state:
            self._sleeps_until = None
            if not rang and upcoming is None and self._upcoming() is None:
                self._started = False
            return self._started


_alarms: Living[Alarm] = Living()


@atexit.register
def _stop_all() -> None:
    for alarm in _alarms.all():
        if alarm._started:
            alarm.stop()
