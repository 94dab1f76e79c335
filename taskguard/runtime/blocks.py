"""Whether a `with` block still runs, even if its `__exit__` never completes.

A signal handler may raise at any step: at the first one of `__exit__`, before it has done anything, and again in the
code that handles this. Whoever keeps the exception keeps its traceback, every frame in it, and every object those
frames refer to. One object is out of reach of all frames: the bound `__exit__`, which the `with` statement fetches
before it calls `__enter__` and drops when the block ends, for whatever reason. It lives exactly as long as the block.
"""

from __future__ import annotations

import weakref
from functools import partial
from types import TracebackType
from typing import Any, TypeAlias

Presence: TypeAlias = "weakref.ref[Any]"
"""A reference to something that lives as long as a block runs."""


class _Exit:
    def __get__(self, block: Block | None, kind: type[Block]) -> Any:
        if block is None:
            return kind.leave  # for contextlib.ExitStack, which keeps the manager itself as long as the block runs
        bound = partial(kind.leave, block)  # not a bound method, which a call may unpack before it begins
        if block._fetched is None:
            block._fetched = weakref.ref(bound)
        return bound


class Block:
    """A context manager, for one `with` statement. Its end is `leave`."""

    _fetched: Presence | None = None

    __exit__ = _Exit()

    def leave(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """The end of the block, as `__exit__`."""

    def presence(self) -> Presence:
        """The block's presence. Call it once, in `__enter__`."""
        fetched = self._fetched
        if fetched is not None and fetched() is not None:
            return fetched
        self._fetched = own = weakref.ref(self)  # no `with` statement fetched it: the manager's own lifetime counts
        return own
