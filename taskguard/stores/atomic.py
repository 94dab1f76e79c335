"""A dictionary with atomic steps, whatever threads and signal handlers do at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from taskguard.runtime import native
from taskguard.runtime.forks import Forked, watch_forks

Answer = TypeVar("Answer")


class AtomicDict(Forked):
    """Threads take turns to change it; anyone may read `items` at any time.

    A signal handler (or a finalizer) may make a step in the middle of its own thread's step. It cannot wait for that
    one. So the interrupted step, which has changed nothing yet, starts again afterwards.
    """

    def __init__(self) -> None:
        self.items: dict[Any, Any] = {}
        # The changes of the step that began last. Changes removed from this list are never applied.
        self._latest: list[dict[Any, Any]] = []
        self._lock = native.allocate_rlock()
        watch_forks(self)

    def step(self, work: Callable[[dict[Any, Any]], Answer]) -> Answer:
        """Pass *work* a dictionary for its changes, apply them all at once, and return its answer.

        *work* may be called more than once: only the changes of its last call are applied.
        """
        while True:
            with self._lock:
                changes: dict[Any, Any] = {}
                latest = self._begin(changes)
                answer = work(changes)
                # One call into C, which no signal handler can interrupt: it applies the changes and records that.
                made = list(map(self.items.update, latest))
            if made:
                return answer

    def purge(self, is_over: Callable[[Any], bool]) -> None:
        """Delete every expired value. (Does nothing if a signal handler makes a step in the middle.)"""
        with self._lock:
            changes: dict[str, Any] = {}
            latest = self._begin(changes)
            # Not its items: a new tuple may start the collector, whose finalizers may make a step.
            found = [(key, self.items.get(key)) for key in list(self.items)]
            changes["items"] = {key: value for key, value in found if value is not None and not is_over(value)}
            list(map(vars(self).update, latest))

    def _begin(self, changes: dict[Any, Any]) -> list[dict[Any, Any]]:
        self._latest.clear()
        self._latest = latest = [changes]
        return latest

    def after_fork(self) -> None:
        self._lock = native.allocate_rlock()
