"""One delivery of a job, in the process that runs its body: what only Celery can do. The engine decides."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, NoReturn

from celery.exceptions import Ignore, Reject, Retry

from taskguard.celery import first_success, held_back, inprocess
from taskguard.celery.guarding import AppGuard, TaskGuard, app_guard_of
from taskguard.celery.headers import ATTEMPT, Call, envelope_in
from taskguard.celery.message import Message
from taskguard.celery.outcomes import outcome_of
from taskguard.celery.replay import replay
from taskguard.engine import effects as fx
from taskguard.engine.drive import Port
from taskguard.engine.envelope import Envelope
from taskguard.engine.layers import Facts
from taskguard.engine.settle import settle_all
from taskguard.engine.under import loss_in, run_under
from taskguard.engine.work import Work
from taskguard.engine.worker import Delivery
from taskguard.errors import StoreUnavailableError
from taskguard.guard import Guard, new_attempt
from taskguard.protocol.store import Claimant, Completed, Held, How
from taskguard.runtime.interrupt import came_by_signal
from taskguard.runtime.whereabouts import work_as
from taskguard.schedule.note import Note

ENDED = "_taskguard_ended"
"""An attribute of the request once the store has the job's end: its claimant, and how it ended."""

_logger = logging.getLogger("taskguard")
in_hand: ContextVar[CeleryDelivery | None] = ContextVar("taskguard_celery_delivery", default=None)
"""The delivery whose body is running."""


class Deferred(Ignore):  # type: ignore[misc]
    """This delivery ends, but the job does not: its message was republished under the same id."""


def deliver(task: Any, body: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run *body* for this message if it may run now; else replay an earlier outcome, defer the message or drop it."""
    return CeleryDelivery(task, partial(body, *args, **kwargs)).deliver(args, kwargs)


class CeleryDelivery(Port):
    guarded: TaskGuard | None
    store_option = "taskguard_store"

    def __init__(self, task: Any, body: Callable[[], Any]) -> None:
        request = task.request
        self.task = task
        self.request = request
        self.guarded = getattr(task, "taskguard", None)
        self.app_guard: AppGuard = app_guard_of(task.app) if self.guarded is None else self.guarded.app_guard
        self.guard: Guard = self.app_guard.guard
        self.guards = (self.guard, self.guard)
        self.id = self.occurrence = str(request.id)
        self.name = f"{task.name}[{self.id}]"
        self.message = Message(task, request, self.id)
        self.envelope = envelope_in(request.headers, self.id)
        self.slot = Note.of(self.envelope.slot) if self.envelope.slot and not request.is_eager else None
        self.attempt = getattr(request, ATTEMPT, "") or new_attempt()
        """The worker's parent process makes it; an eager call has none from there."""
        self.body = body
        self.calls: list[Call] = []
        """Messages under this id. They are sent when the lease of the body has ended."""
        self.replaced_by_itself = False
        """The body replaced itself with a canvas that ends with the same task, under the same id."""
        if not request.is_eager and request.hostname:
            work_as(request.hostname)

    # -- what it is ------------------------------------------------------------------------------------------------

    def begin(self) -> Delivery:
        # No caller has the handle of a scheduled call.
        awaited = self.message.is_awaited if self.slot is None else self.message.is_linked
        facts = Facts(
            attempt=self.attempt, is_this_job=self.id.__eq__, awaited=awaited, can_wait=not self.request.is_eager
        )
        claims = self.app_guard.claims(
            self.task, self.guarded, self.envelope, self.id, self.slot, self.request.retries or 0
        )
        return Delivery.of(self.app_guard.terms, facts, self.envelope, *claims)

    def fail_all(self, error: BaseException) -> None:
        """End the job as failed, in every claim: Celery is about to report it as failed."""
        steps, layers = [], self.machine.layers
        for at in range(len(layers) - 1, -1, -1):
            layer = layers[at]
            step = fx.Settle(verb="release", entry=layer.entry, owner=layer.owner, attempt=self.attempt, at=at)
            step.how, step.anyway, step.keep_for = "failed", True, layer.policy.keep
            step.error = error if layer.slot is None else None
            steps.append(step)
        settle_all(self.guards, steps)
        self.record_end("failed")

    def is_for_another_store(self) -> bool:
        return self.app_guard.identity.is_other(self.guard, self.envelope.store, self.envelope.at)

    # -- the engine's port -----------------------------------------------------------------------------------------

    def stand_in(self, holder: Held, envelope: Envelope) -> None:
        self.message.publish_for(holder.owner, envelope)
        with suppress(StoreUnavailableError):
            self.guard.store.mark([(holder, holder.remaining)], copy_for=self.app_guard.settings.republish_after)

    def republish(self, envelope: Envelope, within: float) -> None:
        self.message.publish_again(envelope, longest=self.app_guard.longest_delay, within=within)

    def comes_again(self, error: BaseException) -> tuple[bool, float] | None:
        # A time limit is a failure. An exception that ends the process is not: its parent settles, or the lease
        # expires.
        return (False, 0.0) if isinstance(error, Exception) else None

    def run(self, works: Sequence[Work]) -> fx.Ended:
        if not self.request.is_eager:
            works[-1].patience = self.app_guard.patience_at_the_end
        if self.guarded is not None and self.task.taskguard_tracks_start:
            self._report_started()
        inprocess.bodies.add(self.attempt)
        try:
            return self._run_and_read(works)
        except Reject as rejected:  # the broker did not accept a message that must be sent before the end
            return self._read(works, rejected)
        except Exception as error:  # or the message cannot be serialized
            return fx.Ended("failed", error=error)
        finally:
            inprocess.bodies.discard(self.attempt)
            settlement = inprocess.settlements.get(self.attempt)
            if settlement is not None:
                settlement.body_has_unwound()

    def _run_and_read(self, works: Sequence[Work]) -> fx.Ended:
        try:
            return self._run(works)
        except (Retry, Ignore, Reject) as way_out:
            return self._read(works, way_out)
        except Exception as error:
            lost = loss_in(works, error)
            if lost is None and self.calls:
                return held_back.ended(
                    self, error
                )  # the body called retry() before: that message is sent, as without a guard
            return lost or fx.Ended("failed", error=error)

    def _run(self, works: Sequence[Work]) -> fx.Ended:
        before = in_hand.set(self if self.guarded is not None else in_hand.get())
        try:
            value = run_under(works, self.body)
        finally:
            in_hand.reset(before)
        if self.calls:  # retry(throw=False), for example
            return held_back.ended(self, None, value)
        return fx.Ended("returned", value=value, outcome=outcome_of(self, value) if self.guarded is not None else None)

    def _read(self, works: Sequence[Work], way_out: BaseException) -> fx.Ended:
        """How the body ended, if it raised Ignore, Reject or Retry."""
        if isinstance(way_out, Reject):
            goes_back = way_out.requeue and self.task.acks_late  # else the broker has no message to requeue
            return fx.Ended("goes_back" if goes_back else "rejected", error=way_out)
        if self.guarded is None and isinstance(way_out, Retry):
            # The message of the retry has been sent already.
            return fx.Ended("goes_back", error=way_out, delay=held_back.delay_of(way_out))
        ended = held_back.ended(self, way_out)
        if isinstance(way_out, Retry):
            ended.floor = works[-1].floor_after(way_out.exc)
        return ended

    def _report_started(self) -> None:
        task, request = self.task, self.request
        if not self.message.ignores_result and not request.is_eager:
            started = {"pid": os.getpid(), "hostname": request.hostname}
            try:
                task.backend.store_result(self.id, started, "STARTED", request=request)
            except Exception as error:  # a backend's driver may raise anything: this state is only informative
                if came_by_signal(error):
                    raise
                _logger.warning("%s: could not store the STARTED state: %s", self.name, error)

    # -- last effects ----------------------------------------------------------------------------------------------

    def returned(self, effect: fx.Return) -> Any:
        if self.guarded is not None and effect.ended_as is not None:
            if effect.is_known and not self.message.ignores_result:
                first_success.expect(self.task.backend, self.id)
            self.record_end(effect.ended_as)
        return effect.value

    def fail(self, effect: fx.Raise) -> NoReturn:
        if effect.ended_as is not None:
            self.record_end(effect.ended_as)
        raise effect.error

    def go_on(self, effect: fx.GoOn) -> Any:
        return held_back.go_on(self, effect)

    def replay(self, done: Completed) -> Any:
        return replay(self, done)

    def drop(self, effect: fx.Drop) -> Any:
        if effect.done is not None and self.guarded is not None and not effect.why.startswith("its slot"):
            return replay(self, effect.done)
        raise Ignore(f"{self.envelope.key or self.name}: {effect.why}")

    def defer(self, envelope: Envelope, reason: fx.Reason, within: float) -> NoReturn:
        self.defer_as(envelope, fx.WHY[reason], within)

    def defer_as(self, envelope: Envelope, why: str, within: float = float("inf")) -> NoReturn:
        try:
            self.message.publish_again(envelope, longest=self.app_guard.longest_delay, within=within)
        except Reject:
            raise
        except Exception as error:  # it was acknowledged early, and the broker does not accept it again
            if not came_by_signal(error):
                self.fail_all(error)
            raise
        raise Deferred(f"deferred: {self.name} {why}")

    def record_end(self, how: How) -> None:
        """Keep the end on the request: the task records it as answered once Celery has sent the callbacks."""
        if self.guarded is not None and self.message.is_linked:
            entry = self.machine.layers[-1].entry
            setattr(self.request, ENDED, (Claimant(entry, self.id, self.attempt), how))

    def hold_back(self, call: Call) -> Any:
        """Keep a message under this id until the lease of the body has ended."""
        self.calls.append(call)
        return self.app_guard.app.AsyncResult(self.id)
