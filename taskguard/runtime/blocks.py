"""Whether a `with` block still runs, known without the help of its end.

A signal handler may raise at any step: at the first one of `__exit__`, before anything was done there, and again in
whatever is done about that. And whoever keeps the exception keeps its traceback, every frame in it, and all that those
know. One object is in no frame's reach: the bound `__exit__`, which the `with` statement fetches before it calls
`__enter__` and lets go of when it is over, however that came about. It lives as long as the block, and no longer.
"""

from __future__ import annotations

import weakref
from functools import partial
from types import TracebackType
from typing import Any, TypeAlias

Presence: TypeAlias = "weakref.ref[Any]"
"""Of something that lives as long as a block runs."""


class _Exit:
    def __get__(self, block: Block | None, kind: type[Block]) -> Any:
        if block is None:
            return kind.leave  # for contextlib.ExitStack, which keeps the manager itself as long as the block runs
        bound = partial(kind.leave, block)  # not a bound method, which a call may take apart before it begins
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
        """To be asked for in `__enter__`, once."""
        fetched = self._fetched
        if fetched is not None and fetched() is not None:
            return fetched
        self._fetched = own = weakref.ref(self)  # nobody has it for a `with` statement: what has the manager counts
        return own
