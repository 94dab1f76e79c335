"""What an object does first in a forked child: threads, locks and sockets do not survive a fork, these objects do."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forked(Protocol):
    def after_fork(self) -> None:
        """Make this copy of the object fit for the child."""


_objects: weakref.WeakSet[Forked] = weakref.WeakSet()


def renew_after_fork(thing: Forked) -> None:
    """Call `thing.after_fork()` in every child forked from now on, as long as somebody still uses *thing*."""
    _objects.add(thing)


def _in_child() -> None:
    for thing in list(_objects):
        thing.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
