"""The fence that a body receives: the token of its claim, and what the body can do with it."""

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
    """The identity under which `once` records the effects of one piece of work."""

    key: str
    owner: str
    """After *keep_for*, work of another owner under the same key is different work."""
    keep_for: float


class Fence:
    """The token of one claim.

    A lease alone cannot stop a process that slept past its expiry from writing. Only the resource can: it refuses a
    token lower than the highest it has seen. The fence carries the token to the resource.
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
        """The claim that nested blocks of `hold` share; None if those blocks do not end the claim."""
        self.idempotency_key = idempotency_key
        """The same through retries and redeliveries of this work: pass it to an API that takes one."""
        self.scheduled_for = scheduled_for
        """The slot that a scheduled run is for, whenever it fires."""
        self.schedule = schedule
        """The name of the schedule's entry; empty for a run that was not scheduled."""
        self.unguarded = unguarded
        """True if the body was called directly or runs without a claim: then nothing keeps other runs out."""

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
        """How often this job has started since its last retry; more than 1 means that one of its workers died."""
        return self._holding.lease.starts

    @property
    def remaining(self) -> float:
        """Seconds for which no other owner can get the key; zero or negative once the lease has expired.

        Always 0 in a process that was forked inside the block: the parent holds the key.
        """
        return self._holding.remaining if self._holding.is_of_this_process else 0.0

    @property
    def lost(self) -> bool:
        """The store has said that this lease is lost."""
        return self._holding.lost

    @property
    def unsure(self) -> bool:
        """The lease expired and the store has not answered since: another owner may hold the key."""
        return not self.lost and self.remaining <= 0

    def check(self) -> None:
        """Return only if this lease is still the newest; raise `LeaseLostError` if it is lost, or may be.

        Costs nothing while the lease is valid. If it has expired (the process was stopped and woke up), this asks the
        store. Always raises in a process that was forked inside the block: the parent holds the lease.
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
        """Raise `StaleFenceError` if *resource* has seen a higher token; else refuse every lower token from now on.

        Runs one statement in the caller's own transaction. Make it the first one: a newer holder then waits until this
        transaction ends, and an older one is refused. *resource* is the key by default.
        """
        from taskguard.fencing.high_water import protect

        protect(self, connection, resource)

    def once(self, connection: Any, name: str | None = None) -> Once:
        """True in exactly one committed transaction, through retries, redeliveries and takeovers; else false.

        Runs one statement in the caller's own transaction: the effect and its record commit together, or neither
        does. Work with several effects gives each a *name*.
        """
        from taskguard.fencing.effects import once

        return once(self._effects, connection, name)

    def headers(self) -> dict[str, str]:
        """Headers for an HTTP request, by which the receiver can refuse a repeated request or a stale holder.

        Characters that a header cannot contain are written as `%XX`.
        """
        from taskguard.fencing.http import header_text

        return {"Idempotency-Key": header_text(self.idempotency_key), "X-Fencing-Token": str(self.token)}


_fences: ContextVar[tuple[Fence, ...]] = ContextVar("taskguard_fences", default=())


def current_fence() -> Fence | None:
    """The fence of the innermost guarded body that runs here; None outside of one."""
    fences = current_fences()
    return fences[-1] if fences else None


def current_fences() -> tuple[Fence, ...]:
    fences = _fences.get()
    # If a signal interrupted the end of a block, that block's fence is still in the context.
    for fence in fences:
        if fence._holding.presences is not None and fence._holding.is_deserted:
            return tuple([fence for fence in fences if not fence._holding.is_deserted])
    return fences


def make_current(fences: tuple[Fence, ...]) -> None:
    # Before Python 3.12 the garbage collector may run while the variable is being set. A finalizer that sets one too
    # then frees what the interpreter still reads. A copy of the context keeps it alive.
    copy = copy_context()
    _fences.set(fences)
    del copy


def fence_held_here(store: Store, key: str) -> Fence | None:
    """The fence under which this thread or task already holds *key*."""
    for fence in current_fences():
        # New tasks and threads get a copy of the context; the fences in it belong to their parent.
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
