"""A limit on concurrent use that never loses a turn to an exception."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

LOOK_AGAIN = 0.002
"""Seconds between two checks when all turns are taken."""


class Turns:
    """At most *most* turns at once.

    A turn is a lock of its own, which its holder takes by `with`. Both ends of `with` are C code, so the turn ends
    whatever is raised, at any instruction. This class only checks which locks are taken.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: list[tuple[int, Any]] = []

    def wait(self, turn: Any, deadline: float) -> bool:
        """Wait until there is room for *turn*, which the caller has locked; False if there is none by *deadline*.

        First come, first served. If an exception ends the wait, the lock is open and the turn does not count.
        """
        mine = threading.get_ident(), turn
        self._taken.append(mine)
        while not self._has_room(mine):
            if time.monotonic() > deadline:
                self._drop([mine])
                return False
            time.sleep(LOOK_AGAIN)
        return True

    def _has_room(self, mine: tuple[int, Any]) -> bool:
        self._drop([taken for taken in self._taken.copy() if not taken[1].locked()])
        earlier = self._taken.copy()
        earlier = earlier[: earlier.index(mine)]
        # A signal handler in the middle of a turn must not wait for its own thread (or greenlet).
        return bool(sum(thread != mine[0] and lock.locked() for thread, lock in earlier) < self._most)

    def _drop(self, turns: list[tuple[int, Any]]) -> None:
        for turn in turns:
            with suppress(ValueError):  # another thread was faster
                self._taken.remove(turn)
