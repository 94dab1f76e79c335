"""What the worker's parent process does a moment later."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from kombu.asynchronous import get_event_loop


class ParentTimer:
    """What is to be done soon, by the worker's own event loop; and what is left of it when the process ends.

    Not by a thread: the pool forks a new child just now, and what a thread has locked at that moment (a module that it
    imports, say) stays locked in the child for ever. When a worker shuts down its loop turns no more, and Celery says
    only of a warm shutdown when that is through.
    """

    def __init__(self) -> None:
        self._left: dict[int, Callable[[], Any]] = {}
        self._number = 0
        self.over_since = 0.0
        self._process = 0

    def call(self, seconds: float, what: Callable[[], Any]) -> None:
        if self.over_since:
            return  # its lease runs out
        if not self._process:
            self._process = os.getpid()
            atexit.register(self.finish)
        self._number += 1
        number = self._number
        self._left[number] = what
        loop = get_event_loop()
        if loop is not None:
            loop.call_later(seconds, self._do, number)
        else:  # a transport that has none, and so a pool that is watched by threads anyway
            timer = threading.Timer(seconds, self._do, (number,))
            timer.daemon = True
            timer.start()

    def _do(self, number: int) -> None:
        what = self._left.pop(number, None)
        if what is not None:
            what()

    def finish(self) -> None:
        """The worker has stopped, and with it all children."""
        if self._process != os.getpid():
            return  # this is one of them
        self.over_since = time.monotonic()
        for number in list(self._left):
            self._do(number)


parent_timer = ParentTimer()
