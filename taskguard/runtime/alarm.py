"""An operating system thread that works at given times and sleeps in between."""

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
"""Seconds without anything to wait for, after which the thread ends. The next call of `ring_by` starts another."""

_NEVER = float("inf")
_logger = logging.getLogger("taskguard")

Duty: TypeAlias = tuple[Callable[[float], None], Callable[[], "float | None"]]
"""What to call when the time has come, and what returns that time: two methods of one object."""


class Alarm:
    """A thread that calls *work* whenever the time that *upcoming* returns has come.

    Both are methods of the object that owns the alarm. While there is a time to wait for, the thread keeps that object
    alive. Otherwise, when the object is garbage, the thread ends.
    """

    def __init__(self, work: Callable[[float], None], upcoming: Callable[[], float | None]) -> None:
        self._work = weakref.WeakMethod(work)
        self._upcoming = weakref.WeakMethod(upcoming)
        self._desk = _Desk()
        self._arrived = [True]
        """Empty while a started thread has not begun to run."""
        _alarms.add(self)

    def __del__(self) -> None:
        self._desk.ring()

    @property
    def is_running(self) -> bool:
        return bool(self._desk.taken.locked())

    def ring_by(self, moment: float) -> None:
        """Make sure that the thread is awake at *moment*, which *upcoming* must already return."""
        is_to_start = self._arrived and not self._desk.taken.locked()
        if is_to_start or moment < self._desk.sleeps_until:
            self._desk.wanted = moment
            self._desk.ring(_alive(self._work, self._upcoming))
        if is_to_start:
            # If a signal interrupts this, two threads may start; the surplus one ends at once.
            arrived: list[bool] = []
            native.start_thread(_serve, self._desk, self._work, self._upcoming, arrived)
            self._arrived = arrived

    def stop(self) -> None:
        """Stop before the process exits: a thread frozen while it holds a lock would block others."""
        self._desk.stopped = True
        self._desk.ring()


class _Desk:
    """State shared by an alarm and its thread. It refers to neither, so a sleeping thread keeps no object alive."""

    def __init__(self) -> None:
        self.taken = native.allocate_lock()
        """Held by the thread that works; others only try it and never wait for it."""
        self.sleeps_until = -_NEVER
        self.wanted = -_NEVER
        """The time for which the bell was last rung."""
        self.stopped = False
        self._bell = native.allocate_lock()
        self._bell.acquire()
        self._called_by: deque[Duty] = deque(maxlen=1)

    def ring(self, duty: Duty | None = None) -> None:
        if duty is not None:
            self._called_by.append(duty)  # everybody else may drop it before the thread wakes up
        with suppress(RuntimeError):  # it has already rung
            self._bell.release()

    def slept(self) -> bool:
        """Sleep until `sleeps_until`; true if the bell rang before."""
        seconds = self.sleeps_until - since_boot()
        rang = seconds > 0 and bool(self._bell.acquire(True, seconds))
        self.sleeps_until = -_NEVER  # awake: the thread asks `upcoming` before it sleeps again
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
    """The thread's main function: serves *desk*, unless another thread does, until nobody needs it."""
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
        # A caller that has just found this thread running has not started another one.
        is_ours = is_idle and duty is not None and duty[1]() is not None and desk.taken.acquire(False)


def _fall_asleep(desk: _Desk, upcoming: Callable[[], float | None]) -> tuple[bool, bool]:
    """Whether there is a time to sleep until, and whether the thread may end if nobody rings before it wakes up."""
    desk.sleeps_until = _NEVER  # before it asks: whatever arrives from now on rings
    moment = upcoming()
    now = since_boot()
    # The reason for the wake-up is often gone by now: a short hold has ended. The thread still sleeps only until the
    # time it was woken for, so that one of many short holds wakes it, and not each of them.
    wanted, desk.wanted = desk.wanted, -_NEVER
    if moment is None and now < wanted < now + IDLE:
        desk.sleeps_until = wanted
        return False, False
    desk.sleeps_until = now + IDLE if moment is None else min(moment, now + LONGEST_SLEEP)
    return moment is not None, moment is None


def _work(work: Callable[[float], None]) -> None:
    try:
        work(since_boot())
    except BaseException:  # if the thread died, all leases would expire
        _logger.exception("an internal thread of taskguard failed and continues")


_alarms: Living[Alarm] = Living()


@atexit.register
def _stop_all() -> None:
    for alarm in _alarms.all():
        alarm.stop()
