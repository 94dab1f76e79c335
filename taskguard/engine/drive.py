"""Carries out the effects of a delivery: those on the store through the guard, the rest through the queue's adapter."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from taskguard.engine.effects import (
    Ask,
    Defer,
    Drop,
    Effect,
    Ended,
    EndQueued,
    GoOn,
    Known,
    Last,
    Look,
    LookAfter,
    Raise,
    RaiseTokens,
    Reason,
    Rename,
    Replay,
    Republish,
    Return,
    RunBody,
    RunUnguarded,
    Settle,
    StandIn,
    Wait,
)
from taskguard.engine.envelope import Envelope
from taskguard.engine.guarded import GuardedFunction
from taskguard.engine.layers import Layer
from taskguard.engine.settle import carry_out, settle_all
from taskguard.engine.under import known_by, raising
from taskguard.engine.unguarded import UnguardedFence
from taskguard.engine.work import Work, effects_of
from taskguard.engine.worker import Delivery
from taskguard.errors import (
    ConfigurationError,
    KeyArgumentError,
    StoreError,
    StoreUnavailableError,
    TooManyStartsError,
)
from taskguard.guard import Guard
from taskguard.protocol.names import check_claim
from taskguard.protocol.store import Claimant, Completed, Entry, Held, How, Lease
from taskguard.runtime.interrupt import came_by_signal
from taskguard.schedule.note import Note

_logger = logging.getLogger("taskguard")


class Port:
    """One delivery of a job, in the process that runs its body. A queue's subclass adds what only that queue can do."""

    name: str
    """The job's name, for people."""
    occurrence: str
    """What identifies the same work in two runs of one job."""
    attempt: str
    envelope: Envelope
    guarded: GuardedFunction | None
    slot: Note | None
    guards: Sequence[Guard]
    """One for each layer."""
    body: Callable[[], Any]
    machine: Delivery
    store_option = "store and namespace"
    arguments = ""
    """The arguments of the call, if the history shows them."""

    # -- what the queue says ---------------------------------------------------------------------------------------

    def begin(self) -> Delivery:
        """The machine of this delivery. The envelope has its key by now."""
        raise NotImplementedError

    def is_for_another_store(self) -> bool:
        """Whether its publisher uses another store than this process."""
        raise NotImplementedError

    def comes_again(self, error: BaseException) -> tuple[bool, float] | None:
        """Whether the queue runs the job again after *error*, and in how many seconds; None: others settle it."""
        raise NotImplementedError

    # -- what only the queue can do --------------------------------------------------------------------------------

    def look_after(self, holder: Held | Entry) -> Known:
        """What the queue knows of a queued job."""
        return "unknown"

    def stand_in(self, holder: Held, envelope: Envelope) -> None:
        """Publish the message of another job; only called if the queue does not know that job's state."""
        raise NotImplementedError

    def rename(self, done: Completed) -> tuple[tuple[Layer, ...] | None, bool]:
        """See `Delivery.renamed`; only called for a queue that reuses ids."""
        raise NotImplementedError

    def republish(self, envelope: Envelope, within: float) -> None:
        """Republish this message; only called for a queue that names its copies."""
        raise NotImplementedError

    def wait(self, wait: Wait) -> tuple[bool, How | None]:
        """Wait for a moment, if this process can; see `Delivery.waited`."""
        return False, None

    def run(self, works: Sequence[Work]) -> Ended:
        """Run the body; return how it ended."""
        raise NotImplementedError

    def before(self, step: Settle) -> None:
        """Called before the store gets *step*: what the queue must know first."""

    # The last effects: the queue gets what each of these returns or raises.

    def returned(self, effect: Return) -> Any:
        raise NotImplementedError

    def fail(self, effect: Raise) -> Any:
        raise NotImplementedError

    def go_on(self, effect: GoOn) -> Any:
        raise NotImplementedError

    def replay(self, done: Completed) -> Any:
        raise NotImplementedError

    def defer(self, envelope: Envelope, reason: Reason, within: float) -> Any:
        raise NotImplementedError

    def drop(self, effect: Drop) -> Any:
        raise NotImplementedError

    # -- what every queue does alike -------------------------------------------------------------------------------

    def deliver(self, args: Any, kwargs: Any) -> Any:
        """Run the body if it may run now; else replay an earlier outcome, defer the job or drop it."""
        if self.guarded is not None and not self._identify(self.guarded, args, kwargs):
            return self.body()  # it raises the TypeError itself
        self.works: dict[int, Work] = {}
        other_store, away = None, None
        try:
            other_store = self._other_store()
        except StoreError as error:
            away = error
        machine = self.machine = self.begin()
        return self._drive(machine, machine.begin(other_store) if away is None else self._store_away(machine, away))

    def _identify(self, guarded: GuardedFunction, args: Any, kwargs: Any) -> bool:
        """False if the arguments do not fit the body. A scheduled job without a key still ends within its slot."""
        try:
            if not self.envelope.key:
                self.envelope = guarded.identified(self.envelope, args, kwargs)
        except Exception as error:
            is_misfit = isinstance(error, TypeError) and not isinstance(error, KeyArgumentError)
            if self.slot is None and is_misfit:
                return False
            if self.slot is None or came_by_signal(error):
                raise
            self.guarded, self.guards = None, self.guards[:1]
            self.body = self.body if is_misfit else raising(error)
            return True
        if guarded.shows_arguments:
            self.arguments = guarded.arguments(args, kwargs)
        return True

    def _other_store(self) -> BaseException | None:
        if not self.is_for_another_store():
            return None
        problem = (
            f"{self.name} was published by a process that uses another store than {self.guards[-1].store!r}; give both "
            f"the same {self.store_option}. The job waits"
        )
        _logger.error("%s", problem)
        return ConfigurationError(problem)

    def _drive(self, machine: Delivery, effect: Effect) -> Any:
        """Carry out effects, from the first to the last."""
        try:
            while not isinstance(effect, Last):
                effect = _CARRIED_OUT[type(effect)](self, machine, effect)
            return self._finish(effect)
        except BaseException as error:
            # A job's time limit can strike at any point, even in these lines. Only the job fails by that.
            again = self.comes_again(error) if came_by_signal(error) else None
            if again is not None:
                settle_all(self.guards, machine.cut_off(error, *again))
            raise
        finally:
            for work in self.works.values():
                work.abandon()

    def _ask(self, machine: Delivery, effect: Ask) -> Effect:
        at = effect.layer
        try:
            asked, answer = self.guards[at].ask(
                check_claim(effect.claim),
                report=machine.layers[at].slot is None and not effect.again,
                arguments=self.arguments,
                after_outage=machine.envelope.after_outage,
            )
        except StoreError as error:
            return self._store_away(machine, error)
        if isinstance(answer, Lease):
            work = self.works[at] = self.work(at, answer, asked)
            if at < len(machine.layers) - 1:
                work.keep_alive()  # the next layer may have to wait
        return machine.answered(answer, time.time())

    def _store_away(self, machine: Delivery, error: StoreError) -> Effect:
        if not isinstance(error, StoreUnavailableError):
            _logger.error("%s: the store refuses this worker; correct the store or its URL: %s", self.name, error)
        return machine.store_away(error)

    def work(self, at: int, lease: Lease, asked: float) -> Work:
        """The granted claim, as work."""
        slot, (idempotency_key, effect) = self.slot, self._known_by()
        moment, schedule = (None, "") if slot is None else (slot.scheduled_for, slot.schedule)
        policy = self.machine.layers[at].policy
        return Work(self.guards[at], policy, lease, asked, idempotency_key, moment, effect, schedule)

    def _known_by(self) -> tuple[str, str]:
        envelope, slot = self.envelope, "" if self.slot is None else self.slot.key
        is_reused = self.guarded is not None and self.guarded.policy.on_done != "rerun"
        given = envelope.idempotency_key
        return known_by(envelope.key, self.occurrence, given=given, slot=slot, is_reused=is_reused)

    def _look(self, machine: Delivery, effect: Look) -> Effect:
        try:
            entry = self.guards[-1].store.get(effect.entry)
        except StoreError as error:
            return self._store_away(machine, error)
        return machine.looked(entry)

    def _run_body(self, machine: Delivery, _: RunBody) -> Effect:
        return machine.body_ended(self.run(list(self.works.values())))

    def _wait(self, machine: Delivery, effect: Wait) -> Effect:
        return machine.waited(*self.wait(effect))

    def _look_after(self, machine: Delivery, effect: LookAfter) -> Effect:
        return machine.holder_is(self.look_after(effect.holder), time.time())

    def _stand_in(self, machine: Delivery, effect: StandIn) -> Effect:
        self.stand_in(effect.holder, effect.envelope)
        return machine.stood_in(time.time())

    def _republish(self, machine: Delivery, effect: Republish) -> Effect:
        self.republish(effect.envelope, effect.within)
        return machine.republished()

    def _rename(self, machine: Delivery, effect: Rename) -> Effect:
        return machine.renamed(*self.rename(effect.done))

    def _settle(self, machine: Delivery, step: Settle | EndQueued | RaiseTokens) -> Effect:
        try:
            if isinstance(step, RaiseTokens):
                self.guards[-1].raise_tokens(step.entry, step.floor, machine.layers[-1].policy)
                return machine.settled(True)
            if isinstance(step, EndQueued):
                return machine.settled(carry_out(self.guards[-1], step))
            self.before(step)
            work = self.works.get(step.layer)
            if work is None:
                return machine.settled(carry_out(self.guards[step.at], step))
            return machine.settled(_end(self.guards[step.layer], work, step))
        except StoreError as error:
            report = _logger.error if isinstance(step, Settle) and step.matters else _logger.warning
            report("%s: could not record how it ended: %s", self.name, error)
            return machine.not_settled(error)

    # -- the end of it ---------------------------------------------------------------------------------------------

    def _finish(self, effect: Last) -> Any:
        if isinstance(effect, Return):
            return self.returned(effect)
        if isinstance(effect, Raise):
            return self.fail(effect)
        if isinstance(effect, GoOn):
            return self.go_on(effect)
        if isinstance(effect, Replay):
            return self.replay(effect.done)
        if isinstance(effect, Defer):
            return self.defer(effect.envelope, effect.reason, effect.within)
        if isinstance(effect, RunUnguarded):
            return self._run_unguarded(effect)
        assert isinstance(effect, Drop)
        if effect.holder is not None:
            _report_skipped(self.guards[0], self.machine.layers[0], effect.holder)
        return self.drop(effect)

    def _run_unguarded(self, effect: RunUnguarded) -> Any:
        """Run the body without its key. A slot that it holds lasts as long as the body and ends with it."""
        _logger.warning("%s runs unguarded: %s", self.name, effect.error)
        try:
            value = self.run_without_store()
        except BaseException:
            for work in self.works.values():
                with suppress(StoreError):
                    work.release("failed")
            raise
        for work in self.works.values():
            with suppress(StoreError):
                work.complete("succeeded", None)
        return value

    def run_without_store(self) -> Any:
        if self.guarded is None:
            return self.body()
        layer, (idempotency_key, effect) = self.machine.layers[-1], self._known_by()
        effects = effects_of(layer.policy, layer.owner, idempotency_key, effect)
        with UnguardedFence(layer.entry, layer.owner, idempotency_key, effects) as fence:
            if self.slot is not None:
                fence.scheduled_for, fence.schedule = self.slot.scheduled_for, self.slot.schedule
            return self.body()


_CARRIED_OUT: dict[type[Effect], Callable[[Port, Delivery, Any], Effect]] = {
    Ask: Port._ask,
    Look: Port._look,
    RunBody: Port._run_body,
    Settle: Port._settle,
    EndQueued: Port._settle,
    RaiseTokens: Port._settle,
    Wait: Port._wait,
    LookAfter: Port._look_after,
    StandIn: Port._stand_in,
    Republish: Port._republish,
    Rename: Port._rename,
}


def _end(guard: Guard, work: Work, step: Settle) -> bool:
    if step.verb == "requeue":
        return work.requeue(step.seconds, copy_for=step.copy_for, keep_starts=step.keep_starts, copy=step.copy)
    if step.error is not None:
        if isinstance(step.error, TooManyStartsError):
            guard.report("too_many_starts", work.lease, token=work.lease.token, detail=str(step.error))
        return work.fail(step.error)
    return work.complete(step.how, step.outcome) if step.verb == "complete" else work.release(step.how, step.outcome)


def _report_skipped(guard: Guard, layer: Layer, holder: Held) -> None:
    slot = layer.slot
    assert slot is not None
    facts = {"holder": holder.owner, "state": holder.state, "since": holder.since}
    detail = f"slot {slot.scheduled_for.isoformat()}, at its worker"
    guard.report("slot_skipped", Claimant(slot.schedule, layer.owner, ""), detail=detail, **facts)
