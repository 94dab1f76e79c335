"""Objects that somebody still uses, and what they do around a fork: threads, locks and files do not survive one."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

from taskguard.runtime import native

Thing = TypeVar("Thing")

LONGEST_WAIT = 10.0
"""Seconds that a fork waits for another thread's to be over."""


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


class Forked:
    """What fits itself for a fork. Each method may be called in a process that forks, and does nothing by itself."""

    def before_fork(self) -> None:
        """In the parent, just before: let go of what must not be copied."""

    def after_fork_in_parent(self) -> None:
        """In the parent, just after."""

    def after_fork(self) -> None:
        """In the child: make this copy of the object fit for it."""


class _Forks(threading.local):
    """Those who are told before a fork are told after it, each of them and no other; one fork at a time."""

    objects: ClassVar[Living[Forked]] = Living()
    turn: ClassVar[Any] = native.allocate_rlock()  # a signal handler may fork in the middle of a fork

    # Of the thread that forks: all three are called in the same one.
    told: Sequence[Forked] = ()

    def before(self) -> None:
        # Threads may fork at once: what one of them lets go of, the other must not take back before its own fork.
        self.turn.acquire(True, LONGEST_WAIT)
        self.told = self.objects.all()
        self._tell(Forked.before_fork.__name__)

    def in_parent(self) -> None:
        try:
            self._tell(Forked.after_fork_in_parent.__name__)
        finally:
            self.told = ()
            while self.turn._is_owned():  # the lock knows it, whatever a signal tore in `before`
                self.turn.release()

    def in_child(self) -> None:
        type(self).turn = native.allocate_rlock()
        try:
            self._tell(Forked.after_fork.__name__)
        finally:
            self.told = ()

    def _tell(self, step: str) -> None:
        """Python forks whatever is raised here: so one that fails, or is interrupted, must not keep others from it."""
        failure: BaseException | None = None
        for thing in self.told:
            try:
                getattr(thing, step)()
            except BaseException as error:
                failure = error
        if failure is not None:
            raise failure


_forks = _Forks()


def watch_forks(thing: Forked) -> None:
    """Tell *thing* of every fork from now on, as long as somebody still uses it."""
    _forks.objects.add(thing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_forks.before, after_in_parent=_forks.in_parent, after_in_child=_forks.in_child)
