"""How a body ended, and how a delivery ends: it settles its claims from the inside out, then returns its last effect.

A job that ends without a lease leaves a receipt, so that no other copy of its message runs, and releases its queue
entry.
"""

from __future__ import annotations

from typing import Any, Literal

from taskguard.engine.effects import (
    Defer,
    Drop,
    Effect,
    Ended,
    GoOn,
    Last,
    Raise,
    RaiseTokens,
    Reason,
    Return,
    RunUnguarded,
    Settle,
    Verb,
)
from taskguard.engine.envelope import Envelope
from taskguard.engine.layers import Facts, Layer, Terms
from taskguard.engine.value import Value
from taskguard.errors import StoreError
from taskguard.protocol.store import Completed, Entry, Held, How

End = Literal["complete", "fail", "release", "requeue", "nothing"]
"""What becomes of a claim: "fail" completes it where failures are reused, and releases it elsewhere."""


COPY_RUNS = "another delivery of it runs"
COPY_WAITS = "another copy of it waits"


class Leaving(Value):
    """The state of a delivery, and its way out. Every field is a value: a model keeps, compares and copies them."""

    terms: Terms
    facts: Facts
    envelope: Envelope
    """As it travels with the next message of the job."""
    layers: tuple[Layer, ...]
    queue_entry: str = ""
    """The entry that holds the job's place in the queue, if that is a separate one."""
    phase: str = "new"
    at: int = 0
    """The layer that is being claimed."""
    granted: tuple[int, ...] = ()
    """The layers that are held."""
    asked: bool = False
    beside: bool = False
    """It runs even if another job holds the key (`enforce=False`), under its own entry."""
    by_hand: bool = False
    """A person ordered it to run again: an earlier failure is not replayed."""
    met_another: bool = False
    """The store has answered at least once that another run holds the key."""
    met_itself: bool = False
    """The last answer was that this job itself holds the key; or another copy of its message continues."""
    holder: Held | Entry | None = None
    done: Completed | None = None
    stamp: str = ""
    ended: Ended | None = None
    steps: tuple[Effect, ...] = ()
    then: Last | None = None

    def entry(self, at: int) -> str:
        """The entry that a layer has, or would have."""
        entry = self.layers[at].entry
        return f"{entry}:beside:{self.facts.attempt}" if self.beside and at in (-1, len(self.layers) - 1) else entry

    def _step(self, verb: Verb, which: int, **facts: Any) -> Settle:
        """The step that settles a layer: by entry, owner and attempt, unless its lease (*layer*) is given."""
        layer = self.layers[which]
        return Settle(verb=verb, entry=self.entry(which), owner=layer.owner, attempt=self.facts.attempt, **facts)

    def deferral(self, reason: Reason, holder: Held | Entry | None = None, within: float = float("inf")) -> Defer:
        return Defer(
            envelope=self.envelope._replace(rounds=self.envelope.rounds + 1),
            reason=reason,
            holder=holder,
            within=within,
        )

    def leave(
        self,
        then: Last,
        *,
        own: End = "requeue",
        outer: End = "requeue",
        how: How = "released",
        receipt: bool = False,
        has_receipt: int = -1,
        error: BaseException | None = None,
        copy: str = "",
        keep_starts: bool = False,
        matters: bool = False,
        first: tuple[Effect, ...] = (),
        last: tuple[Effect, ...] = (),
    ) -> Effect:
        """Settle what is held, then do *then*. *own* and *outer* end the innermost claim and those around it.

        *has_receipt* is the layer where the store has left the receipt in the step that found the holder.
        """
        steps, inner = list(first), len(self.layers) - 1
        if receipt:  # in all layers: a scheduled job that was retried has its key queued
            without = {*range(self.at, inner + 1)} - {*self.granted, has_receipt}
            steps += [self._receipt(at, how, error) for at in sorted(without, reverse=True)]
        for at in reversed(self.granted):
            if at != inner:
                steps += self._end(at, outer, how)
            else:
                steps += self._end(at, own, how, error, copy, keep_starts, matters)
        # Only before the body: the queue entry was released when the body started.
        is_over = not isinstance(then, (Defer, GoOn, RunUnguarded)) and not (isinstance(then, Drop) and self.met_itself)
        if self.queue_entry and self.ended is None and is_over:
            steps.append(self.free_queue_entry())
        if self.beside and is_over:
            steps.append(self._receipt_beside(how, error))
        self.steps, self.then, self.phase = (*steps, *last), then, "leaving"
        return self._next_step()

    def _end(
        self,
        at: int,
        end: End,
        how: How = "released",
        error: BaseException | None = None,
        copy: str = "",
        keep_starts: bool = False,
        matters: bool = False,
    ) -> list[Effect]:
        layer, ended = self.layers[at], self.ended
        if end == "nothing":
            return []
        if end == "requeue" and self.beside and at == len(self.layers) - 1:
            end = "release"  # no other delivery uses that entry
        if end == "requeue":
            seconds, copy_for = self._waits_for(ended)
            more = {"copy": copy, "keep_starts": keep_starts, "matters": matters}
            return [self._step("requeue", at, layer=at, seconds=seconds, copy_for=copy_for, **more)]
        is_reused = end == "fail" and layer.policy.on_done == "reuse"
        verb: Verb = "complete" if end == "complete" or is_reused else "release"
        outcome = ended.outcome if ended is not None and layer.slot is None else None
        failure = error if end == "fail" else None
        return [self._step(verb, at, layer=at, how=how, outcome=outcome, error=failure, matters=matters)]

    def _waits_for(self, ended: Ended | None, delay: float = 0.0) -> tuple[float, float]:
        """How long the job waits in the queue, and after how long its message counts as lost."""
        if ended is not None:
            delay = ended.delay
            if ended.seconds is not None:
                return ended.seconds, self.terms.republish_after + delay
        return self.terms.queued_for + delay, self.terms.republish_after + delay

    def _receipt(self, at: int, how: How, error: BaseException | None) -> Settle:
        layer = self.layers[at]
        return Settle(
            verb="release",
            entry=layer.entry,
            owner=layer.owner,
            attempt=self.facts.attempt,
            at=at,
            how=how,
            error=error if layer.slot is None else None,
            keep_for=layer.policy.keep,
            anyway=True,
            spares_other_run=True,
        )

    def _receipt_beside(self, how: How, error: BaseException | None) -> Settle:
        """Of a job that runs beside another: its own entry may be queued, for a retry that never left."""
        step = self._receipt(len(self.layers) - 1, how, error)
        step.spares_other_run = False
        return step

    def free_queue_entry(self) -> Settle:
        """The job starts or ends: the next job may take its place in the queue."""
        return release_queue_entry(self.queue_entry, self.layers[-1], self.facts.attempt)

    def _next_step(self) -> Effect:
        if self.steps:
            return self.steps[0]
        assert self.then is not None
        self.phase = "over"
        return self.then

    # -- events --------------------------------------------------------------------------------------------------------

    def settled(self, accepted: bool) -> Effect:
        """The store has accepted a step, or refused it."""
        if self.phase != "leaving":
            return self.went_on()
        step, self.steps = self.steps[0], self.steps[1:]
        if not accepted and isinstance(step, Settle) and (step.matters or step.spares_other_run):
            self._not_taken(step)
        return self._next_step()

    def went_on(self, error: StoreError | None = None) -> Effect:
        """A step before the body was carried out, or failed."""
        raise NotImplementedError

    def _not_taken(self, step: Settle) -> None:
        if step.spares_other_run:
            self.then, self.steps = Drop(why=COPY_RUNS), ()  # that one decides how the job ends
        elif self.facts.can_wait:
            self._go_back("replaced")  # another run has started, and reports how the work ended
        elif isinstance(self.then, Return):
            self.then.is_known = False

    def not_settled(self, error: StoreError) -> Effect:
        """The store was unavailable for longer than the guard waits."""
        if self.phase != "leaving":
            return self.went_on(error)
        step, self.steps = self.steps[0], self.steps[1:]
        what = self.terms.on_store_error
        if isinstance(step, Settle) and step.spares_other_run and self.facts.can_wait:
            self._go_back("store_away")  # another copy of a refused or skipped job must not run
        # A plain task does not know the guard: if its schedule misses the end, no result changes.
        if not isinstance(step, Settle) or not step.matters or self.layers[-1].slot is not None:
            return self._next_step()
        if what == "run_unguarded":
            if isinstance(self.then, Return):
                self.then.is_known = False
        elif what == "fail" or not self.facts.can_wait:
            self.then = Raise(error=error)
        else:
            self._go_back("store_away")
        return self._next_step()

    def _go_back(self, reason: Reason) -> None:
        """The store did not accept the end of the body: the job continues, and so do the claims around it."""
        self.envelope = self.envelope._replace(after_outage=reason == "store_away")
        self.then = self.deferral(reason)
        rest = [step.layer for step in self.steps if isinstance(step, Settle) and step.layer >= 0]
        self.steps = tuple([again for at in rest for again in self._end(at, "requeue")])

    def cut_off(self, error: BaseException, comes_again: bool, delay: float = 0.0) -> tuple[Settle, ...]:
        """What is left to settle after a signal's exception, such as a time limit, ended the delivery at any point.

        It may be unknown whether a claim was granted or a step carried out: each is settled if it is there.
        """
        is_over = self.phase == "over" and not isinstance(self.then, (Defer, GoOn))
        if is_over or (self.ended is not None and error is self.ended.error):
            return ()
        seconds, copy_for = self._waits_for(None, delay)
        steps = []
        for at in range(len(self.layers) - 1, -1, -1):
            layer = self.layers[at]
            if comes_again and not (self.beside and at == len(self.layers) - 1):
                steps.append(self._step("requeue", at, at=at, seconds=seconds, copy_for=copy_for))
                continue
            failure = error if layer.slot is None else None
            more = {"how": "failed", "error": failure, "anyway": True, "spares_other_run": True}
            steps.append(self._step("release", at, at=at, keep_for=layer.policy.keep, **more))
        if self.beside and not comes_again:
            steps.append(self._receipt_beside("failed", error))
        if self.queue_entry and not comes_again and not self.met_itself:
            steps.append(self.free_queue_entry())
        return tuple(steps)

    # -- how the body ended -------------------------------------------------------------------------------------------

    def body_ended(self, ended: Ended) -> Effect:
        self.ended = ended
        if ended.floor > self.envelope.floor:
            self.envelope = self.envelope._replace(floor=ended.floor)
        return _ENDS[ended.kind](self, ended)

    def _returned(self, ended: Ended) -> Effect:
        then = Return(value=ended.value, ended_as="succeeded")
        return self.leave(then, own="complete", how="succeeded", outer="complete", matters=True)

    def _failed(self, ended: Ended) -> Effect:
        assert ended.error is not None
        return self.leave(
            Raise(error=ended.error, ended_as="failed"),
            own="fail",
            how="failed",
            outer="release",
            error=ended.error,
            matters=True,
        )

    def _goes_on(self, ended: Ended) -> Effect:
        copy = self.facts.attempt if self.terms.names_copies else ""
        # With hold="queued" a job that joined another uses that one's entry, and keeps it.
        join = self.envelope.join if self.layers[-1].policy.hold == "queued" else ""
        envelope = self.envelope.as_new()._replace(copy=copy, join=join)
        return self.leave(GoOn(envelope=envelope, ended=ended), own="requeue", copy=copy, matters=True)

    def _goes_back(self, ended: Ended) -> Effect:
        assert ended.error is not None
        # For a plain task that a schedule called, the message of the retry has been sent already.
        return self.leave(Raise(error=ended.error), own="requeue", matters=self.layers[-1].slot is None)

    def _passes(self, ended: Ended) -> Effect:
        """The body's own signal to its queue: the work is neither done nor failed."""
        then = Return(value=ended.value) if ended.error is None else Raise(error=ended.error)
        return self.leave(then, own="release", how=_WORDS[ended.kind], outer="release", matters=True)

    def _cancelled(self, ended: Ended) -> Effect:
        assert ended.error is not None
        return self.leave(Drop(why="its slot was cancelled"), own="release", how="revoked", outer="nothing")

    def _lost(self, ended: Ended) -> Effect:
        assert ended.error is not None
        if not self.facts.can_wait:
            tokens = (RaiseTokens(entry=self.entry(-1), floor=ended.floor),) if ended.floor else ()
            return self.leave(Raise(error=ended.error), own="release", outer="release", last=tokens)
        # If the key is free by now, this counts as one of its starts, unless its token was too low.
        end: End = "requeue" if ended.comes_again else "release"
        return self.leave(self.deferral("lost"), own=end, outer=end, keep_starts=not ended.floor)

    def _not_begun(self, ended: Ended) -> Effect:
        return self.leave(self.deferral("whole_time"), own="requeue")


_ENDS = {
    "returned": Leaving._returned,
    "failed": Leaving._failed,
    "retry": Leaving._goes_on,
    "goes_back": Leaving._goes_back,
    "ignored": Leaving._passes,
    "rejected": Leaving._passes,
    "released": Leaving._passes,
    "lost": Leaving._lost,
    "cancelled": Leaving._cancelled,
    "not_begun": Leaving._not_begun,
}
_WORDS: dict[str, How] = {"ignored": "ignored", "rejected": "rejected", "released": "released"}


def release_queue_entry(queue_entry: str, inner: Layer, attempt: str) -> Settle:
    """The step that releases a job's queue entry."""
    return Settle(
        verb="release",
        entry=queue_entry,
        owner=inner.owner,
        attempt=attempt,
        keep_for=inner.policy.keep,
        anyway=True,
    )
