"""A dictionary that is changed by whole steps, whatever threads and signal handlers do meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from taskguard.runtime import native
from taskguard.runtime.forks import Forked, watch_forks

Answer = TypeVar("Answer")


class AtomicDict(Forked):
    """Threads take turns to change it; anyone may read `items` at any time.

    A signal handler (or a finalizer) may make a step in the middle of one that its own thread is making. It cannot wait
    for that one: so the interrupted step, which has changed nothing yet, begins again afterwards.
    """

    def __init__(self) -> None:
        self.items: dict[Any, Any] = {}
        # The changes of whoever began last. What is taken out of this list is never made.
        self._latest: list[dict[Any, Any]] = []
        self._lock = native.allocate_rlock()
        watch_forks(self)

    def step(self, work: Callable[[dict[Any, Any]], Answer]) -> Answer:
        """Let *work* put changes into the dictionary that it is given, make them all at once, and return its answer.

        *work* may be called more than once: the changes that count are those of its last call.
        """
        while True:
            with self._lock:
                changes: dict[Any, Any] = {}
                latest = self._begin(changes)
                answer = work(changes)
                # One call into C, which no signal handler can interrupt: it makes the changes and says that it did.
                made = list(map(self.items.update, latest))
            if made:
                return answer

    def purge(self, is_over: Callable[[Any], bool]) -> None:
        """Forget every value that is over. (Another time, if a signal handler makes a step meanwhile.)"""
        with self._lock:
            changes: dict[str, Any] = {}
            latest = self._begin(changes)
            # Not of its items: to make a tuple may call the collector, whose finalizers may make a step.
            found = [(key, self.items.get(key)) for key in list(self.items)]
            changes["items"] = {key: value for key, value in found if value is not None and not is_over(value)}
            list(map(vars(self).update, latest))

    def _begin(self, changes: dict[Any, Any]) -> list[dict[Any, Any]]:
        self._latest.clear()
        self._latest = latest = [changes]
        return latest

    def after_fork(self) -> None:
        self._lock = native.allocate_rlock()
