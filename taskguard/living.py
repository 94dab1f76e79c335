"""Objects that somebody still uses: each is known as long as that, and no longer."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

from taskguard import native

Thing = TypeVar("Thing")


class Living(Generic[Thing]):
    """Added and listed by any thread at any time. (A WeakSet cannot be listed while a thread adds to it.)"""

    def __init__(self) -> None:
        self._things: weakref.WeakSet[Thing] = weakref.WeakSet()
        self.after_fork()

    def after_fork(self) -> None:
        """In the child: a thread that held the lock is not here."""
        self._lock = native.allocate_rlock()  # a handler of a signal may fork in the middle of `add`

    def add(self, thing: Thing) -> None:
        with self._lock:
            self._things.add(thing)

    def all(self) -> list[Thing]:
        with self._lock:
            return list(self._things)
