"""What an object does around a fork: threads, locks and open files do not survive one, these objects do."""

from __future__ import annotations

import os
import weakref


class Forked:
    """What fits itself for a fork. Each method may be called in a process that forks, and does nothing by itself."""

    def before_fork(self) -> None:
        """In the parent, just before: let go of what must not be copied."""

    def after_fork_in_parent(self) -> None:
        """In the parent, just after."""

    def after_fork(self) -> None:
        """In the child: make this copy of the object fit for it."""


_objects: weakref.WeakSet[Forked] = weakref.WeakSet()


def watch_forks(thing: Forked) -> None:
    """Tell *thing* of every fork from now on, as long as somebody still uses it."""
    _objects.add(thing)


def _before() -> None:
    for thing in list(_objects):
        thing.before_fork()


def _in_parent() -> None:
    for thing in list(_objects):
        thing.after_fork_in_parent()


def _in_child() -> None:
    for thing in list(_objects):
        thing.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
