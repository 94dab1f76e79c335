"""Objects that somebody still uses: each is known as long as that, and no longer."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

Thing = TypeVar("Thing")


class Living(Generic[Thing]):
    """Added, removed and listed by any thread at any time, in a signal handler and in a finalizer too.

    Without a lock: each change is one step of the built-in set, which nothing can interrupt. (A WeakSet is written in
    Python, and cannot be listed while somebody adds to it.)
    """

    def __init__(self) -> None:
        self._things: set[weakref.ref[Thing]] = set()

    def add(self, thing: Thing) -> None:
        self._things.add(weakref.ref(thing, self._things.discard))

    def discard(self, thing: Thing) -> None:
        self._things.discard(weakref.ref(thing))

    def __contains__(self, thing: Thing) -> bool:
        return weakref.ref(thing) in self._things

    def all(self) -> list[Thing]:
        return [thing for known in list(self._things) if (thing := known()) is not None]
