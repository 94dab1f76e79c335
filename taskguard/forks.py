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
    _each(Forked.before_fork.__name__)


def _in_parent() -> None:
    _each(Forked.after_fork_in_parent.__name__)


def _in_child() -> None:
    _each(Forked.after_fork.__name__)


def _each(step: str) -> None:
    """Python forks whatever is raised here: so one that fails, or is interrupted, must not keep the others from it."""
    failure: BaseException | None = None
    for thing in list(_objects):
        try:
            getattr(thing, step)()
        except BaseException as error:
            failure = error
    if failure is not None:
        raise failure


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
