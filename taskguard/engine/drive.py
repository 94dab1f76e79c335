"""Carries out what a delivery wants done: the store's part through the guard, the rest through the queue's adapter."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from taskguard.engine.effects import (
    Ask,
    Drop,
    Effect,
    Ended,
    EndQueued,
    Known,
    Last,
    Look,
    LookAfter,
    RaiseTokens,
    Rename,
    Republish,
    RunBody,
    RunUnguarded,
    Settle,
    StandIn,
    Wait,
)
from taskguard.engine.envelope import Envelope
from taskguard.engine.layers import Layer
from taskguard.engine.work import Work
from taskguard.engine.worker import Delivery
from taskguard.errors import StoreError, TooManyStartsError
from taskguard.guard import Guard, new_attempt
from taskguard.protocol.names import check_claim
from taskguard.protocol.store import Claim, Claimant, Completed, Ending, Entry, Held, How, Lease
from taskguard.runtime.interrupt import came_by_signal

ADOPTED_FOR = 30.0
"""Seconds: an entry that is adopted to be ended is released at once, unless its process dies in between."""

_logger = logging.getLogger("taskguard")


class Port(Protocol):
    """What only the queue can do."""

    name: str
    """Of the job, as people know it."""
    arguments: str
    """Those of the call, where the history is to show them."""

    def work(self, layer: Layer, lease: Lease, asked: float) -> Work:
        """The claim that was granted."""

    def look_after(self, holder: Held | Entry) -> Known:
        """What the queue knows of a job that is queued."""

    def stand_in(self, holder: Held, envelope: Envelope) -> None:
        """Publish the message of another job."""

    def rename(self, done: Completed) -> tuple[tuple[Layer, ...] | None, bool]:
        """See `Delivery.renamed`; only asked of a queue that reuses ids."""

    def republish(self, envelope: Envelope, within: float) -> None:
        """Publish this message again; only asked of a queue that names its copies."""

    def wait(self, wait: Wait) -> tuple[bool, How | None]:
        """Wait for a moment, if that can be done here; see `Delivery.waited`."""

    def run(self, works: Sequence[Work]) -> Ended:
        """Run the body, and say how it ended."""

    def before(self, step: Settle) -> None:
        """What the queue must know before the store is told."""

    def comes_again(self, error: BaseException) -> tuple[bool, float] | None:
        """Whether the queue runs the job again after *error*, and in how many seconds; None: others settle it."""

    def finish(self, effect: Last) -> Any:
        """Carry out the last effect."""


def drive(delivery: Delivery, guards: Sequence[Guard], port: Port, effect: Effect) -> Any:
    """From *effect*, the delivery's first, to its end; what the queue is answered. Each layer has its guard."""
    carrying = _Carrying(delivery, guards, port)
    try:
        while not isinstance(effect, Last):
            effect = carrying.out(effect)
        if isinstance(effect, Drop) and effect.holder is not None:
            _report_skipped(guards[0], delivery, effect.holder)
        return port.finish(effect) if not isinstance(effect, RunUnguarded) else carrying.run_unguarded(effect)
    except BaseException as error:
        # A job's time can be over at any point, in these very lines too. It is nobody's failure but the job's.
        again = port.comes_again(error) if came_by_signal(error) else None
        if again is not None:
            settle_all(guards, delivery.cut_off(error, *again))
        raise
    finally:
        for work in carrying.works.values():
            work.abandon()


class _Carrying:
    def __init__(self, delivery: Delivery, guards: Sequence[Guard], port: Port) -> None:
        self._delivery = delivery
        self._guards = guards
        self._port = port
        self.works: dict[int, Work] = {}

    def out(self, effect: Effect) -> Effect:
        delivery, port = self._delivery, self._port
        if isinstance(effect, (Ask, Look)):
            try:
                return self._ask(effect) if isinstance(effect, Ask) else self._look(effect)
            except StoreError as error:
                return delivery.store_away(error)
        if isinstance(effect, RunBody):
            return delivery.body_ended(port.run([self.works[at] for at in sorted(self.works)]))
        if isinstance(effect, (Settle, EndQueued, RaiseTokens)):
            return self._settle(effect)
        if isinstance(effect, Wait):
            return delivery.waited(*port.wait(effect))
        return self._of_the_queue(effect)

    def run_unguarded(self, effect: RunUnguarded) -> Any:
        """The slot that it may have lasts as long as the body, and ends with it."""
        try:
            value = self._port.finish(effect)
        except BaseException:
            for work in self.works.values():
                with suppress(StoreError):
                    work.release("failed")
            raise
        for work in self.works.values():
            with suppress(StoreError):
                work.complete("succeeded", None)
        return value

    def _of_the_queue(self, effect: Effect) -> Effect:
        delivery, port = self._delivery, self._port
        if isinstance(effect, LookAfter):
            return delivery.holder_is(port.look_after(effect.holder), time.time())
        if isinstance(effect, StandIn):
            port.stand_in(effect.holder, effect.envelope)
            return delivery.stood_in(time.time())
        if isinstance(effect, Republish):
            port.republish(effect.envelope, effect.within)
            return delivery.republished()
        assert isinstance(effect, Rename)
        return delivery.renamed(*port.rename(effect.done))

    def _ask(self, effect: Ask) -> Effect:
        delivery = self._delivery
        layer = delivery.layers[effect.layer]
        asked, answer = self._guards[effect.layer].ask(
            check_claim(effect.claim),
            tell=layer.slot is None and not effect.again,
            arguments=self._port.arguments,
            after_outage=delivery.envelope.after_outage,
        )
        if isinstance(answer, Lease):
            work = self.works[effect.layer] = self._port.work(layer, answer, asked)
            if effect.layer < len(delivery.layers) - 1:
                work.keep_alive()  # what is asked for next may be waited for
        return delivery.answered(answer, time.time())

    def _look(self, effect: Look) -> Effect:
        return self._delivery.looked(self._guards[-1].store.get(effect.entry))

    def _settle(self, step: Settle | EndQueued | RaiseTokens) -> Effect:
        work = self.works.get(step.layer) if isinstance(step, Settle) else None
        try:
            if isinstance(step, RaiseTokens):
                self._guards[-1].raise_tokens(step.entry, step.floor, self._delivery.layers[-1].policy)
                return self._delivery.settled(True)
            if isinstance(step, Settle):
                self._port.before(step)
            if work is None:
                at = step.at if isinstance(step, Settle) else -1
                return self._delivery.settled(carry_out(self._guards[at], step))
            assert isinstance(step, Settle)
            return self._delivery.settled(_end(self._guards[step.layer], work, step))
        except StoreError as error:
            report = _logger.error if isinstance(step, Settle) and step.matters else _logger.warning
            report("%s: recording its end failed: %s", self._port.name, error)
            return self._delivery.not_settled(error)


def _end(guard: Guard, work: Work, step: Settle) -> bool:
    if step.verb == "requeue":
        return work.requeue(step.seconds, copy_for=step.copy_for, keep_starts=step.keep_starts, copy=step.copy)
    if step.error is not None:
        if isinstance(step.error, TooManyStartsError):
            guard.tell("too_many_starts", work.lease, token=work.lease.token, detail=str(step.error))
        return work.fail(step.error)
    return work.complete(step.how, step.outcome) if step.verb == "complete" else work.release(step.how, step.outcome)


def carry_out(guard: Guard, step: Settle | EndQueued) -> bool:
    """A step that is settled by its names alone."""
    if isinstance(step, EndQueued):
        return end_queued(guard, step.entry, step.owner, Ending(how=step.how, keep_for=step.keep_for))
    if step.spares_other_run and _runs_elsewhere(guard.store.get(step.entry), step):
        return False
    claimant = Claimant(step.entry, step.owner, step.attempt)
    if step.verb == "requeue":
        return guard.store.requeue(
            claimant, step.seconds, copy_for=step.copy_for, keep_starts=step.keep_starts, copy=step.copy
        )
    outcome = step.outcome if step.error is None else guard.encoded(guard.outcomes.encode_error, step.error, claimant)
    ending = Ending(how=step.how, keep_for=step.keep_for, outcome=outcome, answered=step.answered)
    if step.verb == "complete":
        return guard.store.complete(claimant, ending)
    return guard.store.release(claimant, ending, anyway=step.anyway)


def _runs_elsewhere(entry: Entry | None, step: Settle) -> bool:
    if entry is None or entry.state != "running" or entry.remaining <= 0:
        return False
    return entry.owner == step.owner and entry.attempt != step.attempt


def end_queued(guard: Guard, entry: str, owner: str, ending: Ending) -> bool:
    """End a job that is queued, and will not run.

    By its owner's name alone the store would give the same receipt to a run that has begun meanwhile. So the entry is
    adopted first, which only one can do, and then released under that lease.
    """
    found = guard.store.get(entry)
    if found is None or found.state != "queued" or found.owner != owner:
        return False
    claim = Claim(entry, owner, new_attempt(), lease=ADOPTED_FOR, keep_for=ending.keep_for)
    _, answer = guard.ask(claim, tell=False, patience=0.0)
    return isinstance(answer, Lease) and guard.store.release(answer, ending)


def settle_all(guards: Sequence[Guard], steps: Iterable[Settle]) -> None:
    """As far as the store answers: whatever is left runs out by itself."""
    with suppress(StoreError):
        for step in steps:
            carry_out(guards[step.at], step)


def _report_skipped(guard: Guard, delivery: Delivery, holder: Held) -> None:
    slot = delivery.layers[0].slot
    assert slot is not None
    facts = {"holder": holder.owner, "state": holder.state, "since": holder.since}
    detail = f"slot {slot.scheduled_for.isoformat()}, at its worker"
    guard.tell("slot_skipped", Claimant(slot.schedule, delivery.layers[0].owner, ""), detail=detail, **facts)
