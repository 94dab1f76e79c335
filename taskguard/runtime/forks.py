"""Objects that are in use, and what they do around a fork: threads, locks and files do not survive one."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

from taskguard.runtime import native

Thing = TypeVar("Thing")

LONGEST_WAIT = 10.0
"""The most seconds that a fork waits for another thread's fork."""


class Living(Generic[Thing]):
    """A weak set that any thread, signal handler or finalizer may change or list at any time.

    It needs no lock: each change is one operation of the built-in set, which nothing can interrupt. (A WeakSet is
    written in Python, and cannot be listed while another thread adds to it.)
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
    """An object that takes part in forks. By default each method does nothing."""

    def before_fork(self) -> None:
        """In the parent, just before the fork: close what must not be copied."""

    def after_fork_in_parent(self) -> None:
        """In the parent, just after the fork."""

    def after_fork(self) -> None:
        """In the child: make this copy of the object usable there."""


class _Forks(threading.local):
    """Notifies the same objects before and after a fork; one fork at a time."""

    objects: ClassVar[Living[Forked]] = Living()
    turn: ClassVar[Any] = native.allocate_rlock()  # a signal handler may fork in the middle of a fork

    # Per thread: the thread that forks calls all three methods.
    notified: Sequence[Forked] = ()

    def before(self) -> None:
        # Two threads may fork at once: what one of them closes, the other must not reopen before the first one's fork.
        self.turn.acquire(True, LONGEST_WAIT)
        self.notified = self.objects.all()
        self._notify(Forked.before_fork.__name__)

    def in_parent(self) -> None:
        try:
            self._notify(Forked.after_fork_in_parent.__name__)
        finally:
            self.notified = ()
            while self.turn._is_owned():  # the lock knows, even if a signal interrupted `before`
                self.turn.release()

    def in_child(self) -> None:
        type(self).turn = native.allocate_rlock()
        try:
            self._notify(Forked.after_fork.__name__)
        finally:
            self.notified = ()

    def _notify(self, step: str) -> None:
        """Python forks whatever is raised here, so an object that fails must not keep the others from their turn."""
        failure: BaseException | None = None
        for thing in self.notified:
            try:
                getattr(thing, step)()
            except BaseException as error:
                failure = error
        if failure is not None:
            raise failure


_forks = _Forks()


def watch_forks(thing: Forked) -> None:
    """Notify *thing* of every fork from now on, as long as it is in use."""
    _forks.objects.add(thing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_forks.before, after_in_parent=_forks.in_parent, after_in_child=_forks.in_child)
