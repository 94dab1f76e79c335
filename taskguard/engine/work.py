"""A granted claim: its body runs in a `with` block, and its end is recorded in the store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any

from taskguard.errors import LeaseLostError, StaleFenceError, StoreError
from taskguard.events import Kind
from taskguard.fence import Effects, Fence, current_fences, make_current
from taskguard.protocol.policy import LONGEST, Policy
from taskguard.protocol.store import Ending, How, Lease
from taskguard.runtime import interrupt
from taskguard.runtime.blocks import Block
from taskguard.runtime.clocks import since_boot
from taskguard.runtime.heartbeat import Holding

if TYPE_CHECKING:
    from taskguard.guard import Guard

REPLY_ON_ITS_WAY = 30.0
"""Seconds that the last request may take to reach the store, in addition to the guard's patience."""


def effects_of(policy: Policy, owner: str, idempotency_key: str, effect_key: str | None = None) -> Effects:
    effect = effect_key or idempotency_key
    # Another job may do the work of a key again once `keep_for` expires; the work of one job is never repeated.
    belongs_to_the_job = policy.on_done == "rerun" and effect == idempotency_key
    return Effects(effect, effect if belongs_to_the_job else owner, policy.keep)


def names_claim(error: BaseException, key: str, token: int) -> bool:
    """Whether *error* means that this claim was lost, or is stale.

    A high-water mark that no token can exceed does not count as a loss: the next holder would be refused as well.
    """
    if not isinstance(error, (LeaseLostError, StaleFenceError)):
        return False
    if isinstance(error, StaleFenceError) and error.is_hopeless:
        return False
    return error.token == token and error.key == key


class Work:
    """A granted claim: its body runs in a `with` block, its end is one of the methods below.

    It belongs to the process that started it. In a process forked since, it is not renewed, and every end is refused
    without a request to the store: the parent still runs it.
    """

    def __init__(
        self,
        guard: Guard,
        policy: Policy,
        lease: Lease,
        asked: float,
        idempotency_key: str,
        scheduled_for: datetime | None = None,
        effect_key: str | None = None,
        schedule: str = "",
    ) -> None:
        self._guard = guard
        self._policy = policy
        self._held_until = asked + (policy.hold_at_least or 0.0)
        self._is_out = True
        self._is_over = False
        self.patience = 0.0
        """Seconds to retry an unavailable store at the end, if longer than the guard's patience and the lease."""
        self.next_floor = 0
        """The token that the next claim must exceed: a resource refused this one's, and the key is free again."""
        self.holding = Holding(
            lease, seconds=policy.lease, asked=asked, on_lost=policy.on_lost, at_most=policy.hold_at_most
        )
        self.lease = lease
        self.fence = Fence(
            self.holding,
            store=guard.store,
            ask=guard.heartbeat.renew_now,
            idempotency_key=idempotency_key,
            scheduled_for=scheduled_for,
            schedule=schedule,
            effects=effects_of(policy, lease.owner, idempotency_key, effect_key),
        )

    def __enter__(self) -> Fence:
        self._is_out = False
        if self._policy.on_lost != "continue":
            self.holding.body = interrupt.enter()
        self.keep_alive()
        make_current((*current_fences(), self.fence))
        return self.fence

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave_body()
        if isinstance(error, StaleFenceError) and error.token == self.lease.token:
            detail = f"{error.resource} has seen {error.mark}"
            self._guard.report("fence_refused", self.lease, token=error.token, detail=detail)
        lost = self.holding.body.meaning_of(error) if self.holding.body is not None else None
        if lost is not None:
            raise lost from None

    def keep_alive(self) -> None:
        """Renew from now on; called directly for work without a block, such as a request that several calls answer."""
        if not self.holding.is_of_this_process:
            return
        self._guard.heartbeat.add(self.holding)

    def _leave_body(self) -> None:
        """Stop interrupting the body. A second call does nothing: an interruption may hit the exit itself."""
        if self._is_out:
            return
        if self.holding.body is not None:
            self.holding.body.leave()
        make_current(tuple([fence for fence in current_fences() if fence is not self.fence]))
        self._is_out = True

    def hold_until(self, moment: float) -> None:
        """Keep others out at least until *moment*, even if the end comes sooner."""
        self._held_until = max(self._held_until, moment)

    @property
    def wants_to_know_of_loss(self) -> bool:
        return self._policy.on_lost != "continue"

    def loss(self) -> LeaseLostError:
        """What to raise if the store refused an end."""
        process = 0 if self.holding.is_of_this_process else self.holding.process
        return LeaseLostError(self.lease.key, self.lease.token, process=process)

    def is_own_loss(self, error: BaseException) -> bool:
        """Whether *error* means that this claim was lost, or is stale, and not another one inside its body."""
        return names_claim(error, self.lease.key, self.lease.token)

    def floor_after(self, error: BaseException | None) -> int:
        """The token that the next claim must exceed, if *error* means that a resource refused this claim.

        For a superseded claim it does no harm: the newer one already has a higher token. If the store lost its data, it
        makes the next token one that the resource accepts.
        """
        if isinstance(error, StaleFenceError) and self.is_own_loss(error):
            return error.mark
        return 0

    # -- ends ------------------------------------------------------------------------------------------------------

    def succeed(self, value: Any) -> bool:
        """Record success with *value* as the outcome, or at least the fact."""
        return self.complete("succeeded", self._guard.encoded(self._guard.outcomes.encode, value, self.lease))

    def fail(self, error: BaseException) -> bool:
        """The work failed for good: the key is free, or done where failures are reused."""
        outcome = self._guard.encoded(self._guard.outcomes.encode_error, error, self.lease)
        if self._policy.on_done == "reuse":
            return self.complete("failed", outcome)
        return self.release("failed", outcome)

    def complete(self, how: How, outcome: bytes | None) -> bool:
        ending = self._ending(how, outcome)
        kind: Kind = "completed" if how == "succeeded" else "failed"
        return self._end(lambda: self._guard.store.complete(self.lease, ending), kind)

    def release(self, how: How = "released", outcome: bytes | None = None) -> bool:
        ending = self._ending(how, outcome)
        kind: Kind = "failed" if how == "failed" else "released"
        return self._end(lambda: self._guard.store.release(self.lease, ending), kind)

    def give_up(self) -> None:
        """Release the key at once: the body has not run, or a newer run superseded it."""
        with suppress(StoreError):
            ending = Ending(keep_for=self._policy.keep, repeat_for=self._repeat_for)
            self._end(lambda: self._guard.store.release(self.lease, ending), "released")

    def abandon(self) -> None:
        """Stop renewing, however the work ended. A second call does nothing."""
        if self._is_over:
            return
        self._guard.heartbeat.drop(self.holding)
        self.holding.lost = True
        self._is_over = True

    def requeue(self, seconds: float, *, copy_for: float, keep_starts: bool = False, copy: str = "") -> bool:
        store = self._guard.store
        return self._end(
            lambda: store.requeue(self.lease, seconds, copy_for=copy_for, keep_starts=keep_starts, copy=copy),
            "requeued",
        )

    def _ending(self, how: How, outcome: bytes | None) -> Ending:
        linger = max(0.0, self._held_until - since_boot())
        return Ending(how=how, keep_for=self._policy.keep, outcome=outcome, linger=linger, repeat_for=self._repeat_for)

    @property
    def _patience_at_the_end(self) -> float:
        return max(self._guard.patience, self.patience, self.holding.remaining)

    @property
    def _repeat_for(self) -> float:
        """Seconds for which `_end` may repeat the same request; after a signal it sends the request once more."""
        return min(self._patience_at_the_end + self._guard.patience + REPLY_ON_ITS_WAY, LONGEST)

    def _end(self, verb: Callable[[], bool], kind: Kind) -> bool:
        # Renew until the store has answered: a slow store must not cost the lease.
        self._leave_body()
        if not self.holding.is_of_this_process:
            self.abandon()
            return False
        self.holding.settling = True
        try:
            return self._guard.settle(self.lease, verb, kind, patience=self._patience_at_the_end)
        except BaseException as error:
            if interrupt.came_by_signal(error):
                # For example a job's timeout: the end may have been recorded, and a repetition is safe. If the store
                # fails too, the guard reports that, and the timeout is still the error to raise.
                with suppress(StoreError):
                    self._guard.settle(self.lease, verb, kind)
            raise
        finally:
            self.abandon()


class KeptAlive(Block):
    """The lease is renewed while this block runs, until after the work is settled, and not after the block."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def __enter__(self) -> None:
        self._work.holding.join(self.presence())

    def leave(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._work.abandon()
