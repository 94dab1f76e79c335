"""A thread of the operating system that works whenever a moment has come, and sleeps between."""

from __future__ import annotations

import atexit
import logging
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from taskguard.runtime import interrupt, native
from taskguard.runtime.clocks import since_boot
from taskguard.runtime.forks import Living

LONGEST_SLEEP = 3600.0
IDLE = 60.0
"""With nothing to wait for so long, the thread ends; the next moment starts another."""

_NEVER = float("inf")
_logger = logging.getLogger("taskguard")

Duty: TypeAlias = tuple[Callable[[float], None], Callable[[], "float | None"]]
"""What to call when the moment has come, and what says when that is: two methods of one object."""


class Alarm:
    """A thread that calls *work* whenever the moment that *upcoming* names has come.

    Both are methods of the object that has the alarm. The thread keeps that object alive while there is a moment to
    wait for; if it is dropped otherwise, the thread ends.
    """

    def __init__(self, work: Callable[[float], None], upcoming: Callable[[], float | None]) -> None:
        self._work = weakref.WeakMethod(work)
        self._upcoming = weakref.WeakMethod(upcoming)
        self._desk = _Desk()
        self._arrived = [True]
        """Empty while a thread that was started has not begun."""
        _alarms.add(self)

    def __del__(self) -> None:
        self._desk.ring()

    @property
    def is_running(self) -> bool:
        return bool(self._desk.taken.locked())

    def ring_by(self, moment: float) -> None:
        """See to it that the thread is awake at *moment*, which *upcoming* has to know by now."""
        is_to_start = self._arrived and not self._desk.taken.locked()
        if is_to_start or moment < self._desk.sleeps_until:
            self._desk.wanted = moment
            self._desk.ring(_alive(self._work, self._upcoming))
        if is_to_start:
            # If this is torn, or a signal handler comes in between, the thread that is too many ends at once.
            arrived: list[bool] = []
            native.start_thread(_serve, self._desk, self._work, self._upcoming, arrived)
            self._arrived = arrived

    def stop(self) -> None:
        """The process ends: a thread that is frozen with a lock in its hands would keep others waiting for it."""
        self._desk.stopped = True
        self._desk.ring()


class _Desk:
    """Where an alarm and its thread meet. It knows neither, so a thread that sleeps keeps nobody alive."""

    def __init__(self) -> None:
        self.taken = native.allocate_lock()
        """By the thread that works; only ever tried, never waited for."""
        self.sleeps_until = -_NEVER
        self.wanted = -_NEVER
        """The moment that the bell was last rung for."""
        self.stopped = False
        self._bell = native.allocate_lock()
        self._bell.acquire()
        self._called_by: deque[Duty] = deque(maxlen=1)

    def ring(self, duty: Duty | None = None) -> None:
        if duty is not None:
            self._called_by.append(duty)  # it may be dropped by everybody else before the thread wakes up
        with suppress(RuntimeError):  # it has rung already
            self._bell.release()

    def slept(self) -> bool:
        """Sleep as long as is to be slept; true if the bell rang meanwhile."""
        seconds = self.sleeps_until - since_boot()
        rang = seconds > 0 and bool(self._bell.acquire(True, seconds))
        self.sleeps_until = -_NEVER  # awake: it looks at what is upcoming before it sleeps again
        return rang

    def caller(self) -> Duty | None:
        try:
            return self._called_by.pop()
        except IndexError:
            return None


def _alive(
    work: weakref.WeakMethod[Callable[[float], None]], upcoming: weakref.WeakMethod[Callable[[], float | None]]
) -> Duty | None:
    duty = work(), upcoming()
    return None if duty[0] is None or duty[1] is None else (duty[0], duty[1])


def _serve(
    desk: _Desk,
    work: weakref.WeakMethod[Callable[[float], None]],
    upcoming: weakref.WeakMethod[Callable[[], float | None]],
    arrived: list[bool],
) -> None:
    """The thread: works for *desk* until nobody needs it, if no other thread does."""
    interrupt.leave_signals_to_others()
    is_ours = desk.taken.acquire(False)
    arrived.append(True)
    duty = desk.caller() or _alive(work, upcoming)
    while is_ours:
        is_idle = False
        try:
            while duty is not None and not desk.stopped and not is_idle:
                has_moment, may_end = _fall_asleep(desk, duty[1])
                if not has_moment:
                    duty = None
                is_idle = not desk.slept() and may_end
                duty = desk.caller() or duty or _alive(work, upcoming)
                if duty is not None and not is_idle and not desk.stopped:
                    _work(duty[0])
        finally:
            desk.taken.release()
        # Somebody who has just found this thread at work has not started another one.
        is_ours = is_idle and duty is not None and duty[1]() is not None and desk.taken.acquire(False)


def _fall_asleep(desk: _Desk, upcoming: Callable[[], float | None]) -> tuple[bool, bool]:
    """Whether there is a moment to sleep until; and whether the thread may end if nobody rings before it wakes up."""
    desk.sleeps_until = _NEVER  # before it looks: what comes from now on rings
    moment = upcoming()
    now = since_boot()
    # What it was woken for is often over by now, as a short hold is. It looks then all the same, so that it is woken by
    # one of many short holds, and not by each.
    wanted, desk.wanted = desk.wanted, -_NEVER
    if moment is None and now < wanted < now + IDLE:
        desk.sleeps_until = wanted
        return False, False
    desk.sleeps_until = now + IDLE if moment is None else min(moment, now + LONGEST_SLEEP)
    return moment is not None, moment is None


def _work(work: Callable[[float], None]) -> None:
    try:
        work(since_boot())
    except BaseException:  # if it died, all leases would go with it
        _logger.exception("a thread of the guard goes on after an error of its own")


_alarms: Living[Alarm] = Living()


@atexit.register
def _stop_all() -> None:
    for alarm in _alarms.all():
        alarm.stop()
