"""The blocks of `Guard.hold`. Nested blocks share one claim, and the last of them to end releases it."""

from __future__ import annotations

import weakref
from contextlib import ContextDecorator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from taskguard.engine.claiming import Claiming
from taskguard.engine.under import Ended, settle
from taskguard.engine.unguarded import UnguardedFence
from taskguard.errors import ConfigurationError, LeaseLostError, OutcomeNotKeptError
from taskguard.fence import Fence, fence_held_here
from taskguard.keys.signatures import runs_later
from taskguard.protocol.policy import Policy
from taskguard.protocol.store import Completed
from taskguard.runtime.blocks import Block, Presence
from taskguard.runtime.clocks import since_boot
from taskguard.runtime.switch import is_off

if TYPE_CHECKING:
    from taskguard.engine.work import Work
    from taskguard.guard import Guard


class Shared:
    """A claim that nested blocks share."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.floor = 0
        """The token that a resource has seen, if it refused this claim's token in one of the blocks."""


class Hold(Block, ContextDecorator):
    """Holds the key while its block runs; see `Guard.hold`."""

    def __init__(self, guard: Guard, key: str, policy: Policy) -> None:
        self._guard = guard
        self._key = key
        self._policy = policy
        self._present: Presence | None = None
        self._fence: Fence | None = None
        self._shared: Shared | None = None
        self._unguarded: UnguardedFence | None = None

    def __call__(self, function: Any) -> Any:
        if runs_later(function):
            raise ConfigurationError(
                f"{function!r} is a coroutine or a generator: a call only starts it, so hold() around the call guards "
                "nothing; write `with guard.hold(…):` inside it"
            )
        return super().__call__(function)

    def _recreate_cm(self) -> Hold:
        return Hold(self._guard, self._key, self._policy)  # as a decorator: one for each call

    def __enter__(self) -> Fence:
        if self._present is not None:
            raise ConfigurationError(f"this hold of {self._key} was used before; call hold() again for another block")
        self._present = self.presence()
        self._fence = fence_held_here(self._guard.store, self._key)
        if self._fence is not None:
            self._join(self._fence, self._present)
            return self._fence
        if is_off():
            self._unguarded = UnguardedFence(self._key, self._guard.new_owner())
            return self._unguarded.__enter__()
        return self._claim(self._present)

    def leave(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._unguarded is not None:
            self._unguarded.leave(kind, error, trace)
        elif self._shared is None or self._shared.work.holding.is_held_beside(self._present):
            self._leave_it_to_others(error)
        else:
            self._end(self._shared, kind, error, trace)

    def _claim(self, present: Presence) -> Fence:
        claim = self._guard.new_claim(self._key, self._guard.new_owner(), self._policy)
        work = Claiming(self._guard, self._policy, claim).obtain()
        if isinstance(work, Completed):  # a new owner cannot have ended before
            raise OutcomeNotKeptError(self._key, work.owner, "the key was settled by hand while it was being claimed")
        shared = self._shared = Shared(work)
        try:
            work.holding.join(present)
            work.fence.shared = weakref.ref(shared)
            self._fence = work.__enter__()
            if work.holding.remaining <= 0:
                self._fence.check()  # the process was suspended since the grant, and may be superseded
            return self._fence
        except BaseException as error:
            self._give_back(shared, error)
            raise

    def _join(self, fence: Fence, present: Presence) -> None:
        # Without it a job or `Guard.run` made the claim, and ends it.
        self._shared = fence.shared() if fence.shared is not None else None
        if self._shared is not None:
            self._shared.work.holding.join(present)
            self._shared.work.hold_until(since_boot() + (self._policy.hold_at_least or 0.0))

    def _leave_it_to_others(self, error: BaseException | None) -> None:
        assert self._fence is not None
        if self._shared is not None:
            self._shared.work.holding.part(self._present)
            self._shared.floor = max(self._shared.floor, self._shared.work.floor_after(error))
        if error is None and self._fence.lost and self._policy.on_lost != "continue":
            raise LeaseLostError(self._key, self._fence.token)

    def _end(
        self,
        shared: Shared,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            shared.work.__exit__(kind, error, trace)
        except BaseException as raised:
            self._give_back(shared, raised)
            raise
        if not self._give_back(shared, error) and error is None and shared.work.wants_to_know_of_loss:
            raise shared.work.loss()

    def _give_back(self, shared: Shared, error: BaseException | None) -> bool:
        try:
            floor = max(shared.floor, shared.work.floor_after(error))
            is_newest = settle(shared.work, Ended("released", error=error, floor=floor))
            self._guard.raise_tokens(self._key, shared.work.next_floor, self._policy)
            return is_newest
        finally:
            shared.work.abandon()
