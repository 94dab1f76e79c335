"""A timer for the worker's parent process."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from kombu.asynchronous import get_event_loop


class ParentTimer:
    """Calls functions soon, in the worker's own event loop; and those that are left when the process ends.

    It does not use a thread: the pool is about to fork a new child, and a lock that a thread holds at that moment (of a
    module that it imports, for example) stays locked in the child for ever. When a worker shuts down, its loop stops,
    and only for a warm shutdown does Celery signal the end.
    """

    def __init__(self) -> None:
        self._left: dict[int, Callable[[], Any]] = {}
        self._number = 0
        self.over_since = 0.0
        self._process = 0

    def call(self, seconds: float, what: Callable[[], Any]) -> None:
        if self.over_since:
            return  # the lease expires instead
        if not self._process:
            self._process = os.getpid()
            atexit.register(self.finish)
        self._number += 1
        number = self._number
        self._left[number] = what
        loop = get_event_loop()
        if loop is not None:
            loop.call_later(seconds, self._do, number)
        else:  # a transport without one: then threads watch the pool anyway
            timer = threading.Timer(seconds, self._do, (number,))
            timer.daemon = True
            timer.start()

    def _do(self, number: int) -> None:
        what = self._left.pop(number, None)
        if what is not None:
            what()

    def finish(self) -> None:
        """Call what is left: the worker has stopped, and so have all its children."""
        if self._process != os.getpid():
            return  # this process is a child
        self.over_since = time.monotonic()
        for number in list(self._left):
            self._do(number)


parent_timer = ParentTimer()
