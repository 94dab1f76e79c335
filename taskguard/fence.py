"""What a body is given: the token of its claim, and what can be done with it."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from contextvars import ContextVar, copy_context
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from taskguard.errors import LeaseLostError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskguard.fencing.effects import Once
    from taskguard.protocol.store import Store
    from taskguard.runtime.heartbeat import Holding


class Effects(NamedTuple):
    """What `once` remembers the effects of one piece of work by."""

    key: str
    owner: str
    """Whose they are: when *keep_for* is over, work of another owner under the same key is other work."""
    keep_for: float


class Fence:
    """The token of one claim.

    A lease alone cannot stop a process that slept past its end from writing; only the resource can, by refusing a
    token lower than the highest it has seen. The fence carries that token to it.
    """

    def __init__(
        self,
        holding: Holding,
        *,
        store: Store,
        ask: Callable[[Holding], None],
        idempotency_key: str,
        effects: Effects,
        scheduled_for: datetime | None = None,
        schedule: str = "",
        unguarded: bool = False,
    ) -> None:
        self._holding = holding
        self._effects = effects
        self._store = store
        self._ask = ask
        self._where = where()
        self.shared: weakref.ref[Any] | None = None
        """How the blocks of `hold` that share the claim know of each other; None if it is not theirs to end."""
        self.idempotency_key = idempotency_key
        """The same through retries and redeliveries of this work: for an API that takes one."""
        self.scheduled_for = scheduled_for
        """The moment a scheduled run is for, whenever it fires."""
        self.schedule = schedule
        """The name of the schedule's entry; empty for a run that was not scheduled."""
        self.unguarded = unguarded
        """Whether it guards nothing: the body was called directly, or runs without a claim. Nobody is kept out."""

    def __repr__(self) -> str:
        guards = ", unguarded" if self.unguarded else ""
        return f"Fence(key={self.key!r}, owner={self.owner!r}, token={self.token}{guards})"

    @property
    def key(self) -> str:
        return self._holding.lease.key

    @property
    def owner(self) -> str:
        return self._holding.lease.owner

    @property
    def token(self) -> int:
        return self._holding.lease.token

    @property
    def starts(self) -> int:
        """How often this job was started since its last retry; more than 1 means that a worker of it died."""
        return self._holding.lease.starts

    @property
    def remaining(self) -> float:
        """Seconds for which nobody else can have been granted the key; not positive once that is over.

        Nor in a process that was forked inside the block: the key is its parent's.
        """
        return self._holding.remaining if self._holding.is_of_this_process else 0.0

    @property
    def lost(self) -> bool:
        """The store has said that this lease is over."""
        return self._holding.lost

    @property
    def unsure(self) -> bool:
        """The lease ran out and the store has not been heard of since: somebody else may hold the key."""
        return not self.lost and self.remaining <= 0

    def check(self) -> None:
        """Return only if this lease is still the newest; raise `LeaseLostError` if it is lost, or nobody can say.

        Costs nothing while the lease is valid. After that (a process that was stopped and wakes) the store is asked.
        Always raises in a process that was forked inside the block: the lease is its parent's.
        """
        if not self._holding.is_of_this_process:
            raise LeaseLostError(self.key, self.token, process=self._holding.process)
        if self._holding.lost:
            raise LeaseLostError(self.key, self.token)
        if self._holding.remaining > 0:
            return
        try:
            self._ask(self._holding)
        except StoreUnavailableError as error:
            raise LeaseLostError(self.key, self.token, True) from error
        if self._holding.lost or self._holding.remaining <= 0:
            raise LeaseLostError(self.key, self.token, not self._holding.lost)

    def protect(self, connection: Any, resource: str | None = None) -> None:
        """Raise `StaleFenceError` if a higher token has been at *resource*; else nobody lower gets in from now on.

        One statement in the caller's own transaction, and best its first: a newer holder waits there until this
        transaction has ended, and an older one is refused. *resource* is the key unless it is named.
        """
        from taskguard.fencing.high_water import protect

        protect(self, connection, resource)

    def once(self, connection: Any, name: str | None = None) -> Once:
        """True for one transaction that commits, through retries, redeliveries and takeovers; false for all others.

        One statement in the caller's own transaction: the effect and the memory of it commit together, or neither
        does. Work with several effects gives each a *name*.
        """
        from taskguard.fencing.effects import once

        return once(self._effects, connection, name)

    def headers(self) -> dict[str, str]:
        """What to send with an HTTP request so that its receiver can refuse a repetition, or a stale holder.

        What cannot stand in a header is written as `%XX`.
        """
        from taskguard.fencing.http import header_text

        return {"Idempotency-Key": header_text(self.idempotency_key), "X-Fencing-Token": str(self.token)}


_fences: ContextVar[tuple[Fence, ...]] = ContextVar("taskguard_fences", default=())


def current_fence() -> Fence | None:
    """The fence of the innermost body that runs here; None outside of one."""
    fences = current_fences()
    return fences[-1] if fences else None


def current_fences() -> tuple[Fence, ...]:
    fences = _fences.get()
    # A block whose end was torn away by a signal has left its own behind.
    for fence in fences:
        if fence._holding.presences is not None and fence._holding.is_deserted:
            return tuple([fence for fence in fences if not fence._holding.is_deserted])
    return fences


def make_current(fences: tuple[Fence, ...]) -> None:
    # Before Python 3.12 the collector may come while the variable is being set, and a finalizer that sets one too frees
    # what the interpreter still reads. As long as there is a copy, it is not freed.
    copy = copy_context()
    _fences.set(fences)
    del copy


def fence_held_here(store: Store, key: str) -> Fence | None:
    """The fence under which this very thread or task holds *key* already."""
    for fence in current_fences():
        # A context is copied into new tasks and threads; what they find in it is not theirs.
        if fence.key == key and fence._store is store and fence._where == where() and not fence.lost:
            return fence
    return None


def where() -> tuple[int, int, int]:
    """This process, this thread (or greenlet), this task of an event loop."""
    task = 0
    if "asyncio" in sys.modules:
        asyncio = sys.modules["asyncio"]
        if asyncio._get_running_loop() is not None:
            task = id(asyncio.current_task())
    return os.getpid(), threading.get_ident(), task
