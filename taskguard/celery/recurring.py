"""What a worker's parent process does again and again while it consumes."""

from __future__ import annotations

import threading
from typing import Any

from celery.concurrency import solo, thread


class Recurring:
    """Calls `tick` again after as many seconds as it answers, from when the consumer starts until it stops."""

    name = ""
    first = 0.0
    """Seconds from the start to the first tick."""

    def __init__(self, consumer: Any) -> None:
        self.consumer = consumer
        self._timer: Any = None
        self._stopped = threading.Event()

    def tick(self) -> float:
        raise NotImplementedError

    def close(self) -> None:
        """There is no further tick."""

    def start(self) -> None:
        pool = self.consumer.pool
        if isinstance(pool, (solo.TaskPool, thread.TaskPool)) or getattr(pool, "is_green", False):
            # A body may keep the main thread busy, and no process is forked here.
            threading.Thread(target=self._run, name=self.name, daemon=True).start()
        else:
            self._call_after(self.first)  # not by a thread: see `parent_timer.py`

    def stop(self) -> None:
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()
            self.close()

    def _run(self) -> None:
        seconds = self.first
        while not self._stopped.wait(seconds):
            seconds = self.tick()
        self.close()

    def _call_after(self, seconds: float) -> None:
        self._timer = self.consumer.timer.call_after(seconds, self._tick_and_go_on)

    def _tick_and_go_on(self) -> None:
        if not self._stopped.is_set():
            self._call_after(self.tick())
