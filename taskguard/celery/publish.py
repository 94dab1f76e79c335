"""What happens when a guarded task is called: the engine decides, and Celery publishes."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from functools import partial
from typing import Any

from celery.utils import uuid

from taskguard.celery.delivery import in_hand
from taskguard.celery.events import Calling
from taskguard.celery.guarding import AppGuard, TaskGuard
from taskguard.celery.headers import Call
from taskguard.celery.map_items import is_celery_task
from taskguard.celery.message_repr import with_texts
from taskguard.celery.result import StoredResult, handle, info
from taskguard.engine import effects as fx
from taskguard.engine import publisher
from taskguard.engine.call_info import CallInfo
from taskguard.engine.envelope import Envelope
from taskguard.errors import KeyArgumentError, StoreError, StoreUnavailableError
from taskguard.guard import new_attempt
from taskguard.protocol.names import check_claim, check_job_id
from taskguard.protocol.store import Completed, Ending, Held, Lease
from taskguard.runtime.interrupt import came_by_signal

PATIENCE = 1.0
"""Seconds that a call waits for an unavailable store. Then its message is published without a claim."""

_logger = logging.getLogger("taskguard")


def publish(app_guard: AppGuard, task: TaskGuard, call: Call) -> Any:
    """Publish the call, unless its work is already queued, running or done."""
    one = _OneCall(app_guard, task, call)
    if not one.identify():
        return call.publish()
    return one.publish()


class _OneCall:
    machine: publisher.Call

    def __init__(self, app_guard: AppGuard, task: TaskGuard, call: Call) -> None:
        self._app_guard = app_guard
        self._task = task
        self._call = call
        given = call.options.get("task_id")
        self._is_named = given is not None
        self.task_id: str = given if given is not None else uuid()
        self.nobody_listens = bool(call.options.get("parent_id")) and in_hand.get() is None
        """It is a callback of a job that has ended: an error would make a failure of that job."""
        self._interrupted: BaseException | None = None
        """The error that was raised while the message was prepared."""

    def identify(self) -> bool:
        """False for a call that the body or the worker must refuse."""
        try:
            self._identify()
        except Exception as error:
            # The body refuses arguments that do not fit, as without a guard.
            is_for_the_body = isinstance(error, TypeError) and not isinstance(error, KeyArgumentError)
            if came_by_signal(error) or not (is_for_the_body or self.nobody_listens):
                raise
            return False
        return True

    def _identify(self) -> None:
        if self._is_named:
            check_job_id("task_id", self.task_id)
        call, app_guard, zone = self._call, self._app_guard, self._app_guard.zone
        found = call.envelope
        envelope = (
            found if found.key else Envelope(id=self.task_id, idempotency_key=found.idempotency_key, slot=found.slot)
        )
        settings, is_private = app_guard.settings, app_guard.results_are_private
        self._delay, is_linked = call.delay(zone), call.is_linked
        waits_for = call.waits_for(settings.queued_for + self._delay, zone)
        self.machine = publisher.Call(
            policy=self._task.policy,
            envelope=self._task.identified(envelope, call.args or (), call.kwargs or {}),
            owner=self.task_id,
            new_attempt=new_attempt,
            waits_for=waits_for,
            copy_for=settings.republish_after,
            needs_own_handle=self._is_named or is_linked or is_private,
            may_raise=not self._is_named,
            nobody_listens=self.nobody_listens,
            may_be_further=self._is_named and is_linked,
            hears_by_message=is_linked or is_private or bool(call.options.get("group_id")),
            meanwhile=lambda: self._prepare(),  # whoever copies a claim would copy a bound method with the whole app
        )

    def publish(self) -> Any:
        try:
            effect = self._decide()
        except StoreError as error:
            if not isinstance(error, StoreUnavailableError) and not self.nobody_listens:
                raise
            # The worker will ask: an outage is no reason to lose the call.
            _logger.warning("%s[%s] is published unclaimed: %s", self._call.name, self.task_id, error)
            self._name_store(self._app_guard.identity.known)
            return self.publish_as(self.machine.unclaimed(), is_outage=True)
        if isinstance(effect, publisher.Publish):
            self._log_further_call(effect.about, "this call is published too, and gets its outcome")
            return self.publish_as(effect)
        if isinstance(effect, fx.Raise):
            raise effect.error
        assert isinstance(effect, publisher.Answer)
        self._log_further_call(effect.found, "this call gets its outcome")
        return self._answer(effect.found)

    def _decide(self) -> fx.Last:
        machine, app_guard = self.machine, self._app_guard
        if not machine.envelope.store:
            identity = app_guard.identity
            self._name_store(identity.known or app_guard.breaker.ask(partial(identity.name, app_guard.calls, PATIENCE)))
        effect = machine.begin()
        while not isinstance(effect, fx.Last):
            effect = self._carry_out(effect)
        return effect

    def _name_store(self, name: str) -> None:
        if name and not self.machine.envelope.store:
            self.machine.envelope = self.machine.envelope._replace(store=name, at=time.time())

    def _log_further_call(self, found: Held | Completed | None, what: str) -> None:
        if found is not None and found.owner == self.task_id:
            state = f"is {found.state} already" if isinstance(found, Held) else "ended before"
            _logger.info("%s[%s] %s: %s", self._call.name, self.task_id, state, what)

    def _carry_out(self, effect: fx.Effect) -> fx.Effect:
        machine = self.machine
        if isinstance(effect, fx.Ask):
            return machine.answered(self._ask(effect))
        if isinstance(effect, fx.Look):
            app_guard = self._app_guard
            return machine.looked(app_guard.breaker.ask(partial(app_guard.calls.store.get, effect.entry)))
        if isinstance(effect, fx.LookAfter):
            owner = effect.holder.owner
            known: fx.Known = "coming" if self._app_guard.confirmations.knows(owner) else "unknown"
            return machine.holder_is(known, is_celery_task(owner))
        assert isinstance(effect, fx.StandIn)
        self._stand_in(effect)
        return machine.stood_in(is_celery_task(effect.holder.owner))

    # -- asking ----------------------------------------------------------------------------------------------------

    def _ask(self, effect: fx.Ask) -> Lease | Held | Completed:
        task, call = self._task, self._call
        arguments = task.arguments(call.args or (), call.kwargs or {}) if task.shows_arguments else ""
        try:
            with Calling(self._call.name):
                claim, ask = check_claim(effect.claim), self._app_guard.calls.ask
                question = partial(ask, claim, patience=PATIENCE, arguments=arguments)
                _, answer = self._app_guard.breaker.ask(question)
        except StoreError:
            if self._interrupted is not None:
                raise self._interrupted from None
            raise
        if self._interrupted is not None:
            if isinstance(answer, Lease):
                self._give_back(answer)
            raise self._interrupted
        return answer

    def _prepare(self) -> None:
        """Do part of what Celery does for a message, before the store has answered whether there will be one."""
        if self._interrupted is not None:
            return
        try:
            self._call = with_texts(self._call, self._app_guard.app)
        except BaseException as error:
            # Arguments that cannot be serialized, a time limit, or Ctrl-C: raised once the store has answered whether
            # there is a claim to release.
            self._interrupted = error

    def _stand_in(self, effect: fx.StandIn) -> None:
        held, app_guard = effect.holder, self._app_guard
        delay = max(0.0, held.remaining - app_guard.settings.queued_for)  # what is left of the holder's own delay
        self._call.publish_for(held.owner, effect.envelope, delay)
        app_guard.confirmations.add(held, held.remaining, app_guard.settings.republish_after + delay)

    # -- answers ---------------------------------------------------------------------------------------------------

    def publish_as(self, effect: publisher.Publish, *, is_outage: bool = False) -> Any:
        claimed = effect.claimed
        try:
            result = self._call.publish_as(self.task_id, effect.envelope)
        except BaseException:
            if isinstance(claimed, Lease):
                self._give_back(claimed)  # the broker refused the message
            raise
        if claimed is not None:
            copy_for = self._app_guard.settings.republish_after + self._delay
            self._app_guard.confirmations.add(claimed, self.machine.waits_for, copy_for)
        if effect.raises is not None:
            raise effect.raises
        if is_outage:
            return handle(result, CallInfo(effect.envelope.key, self.task_id, state="unclaimed"))
        return handle(result, info(effect.envelope.key, self.task_id, effect.about or claimed))

    def _give_back(self, lease: Lease) -> None:
        """Release the claim, as no message is known to be sent. If a worker has one, the store ignores this."""
        with suppress(StoreError):
            self._app_guard.calls.store.release(lease, Ending(keep_for=self._task.policy.keep))

    def _answer(self, found: Held | Completed) -> Any:
        about = info(self.machine.envelope.key, self.task_id, found)
        if isinstance(found, Completed):
            return handle(StoredResult(found, self._app_guard.outcomes, self._app_guard.app), about)
        result = (self._call.options.get("result_cls") or self._app_guard.app.AsyncResult)(found.owner)
        result.ignored = bool(self._call.options.get("ignore_result"))  # as Celery does: no caller waits for it
        return handle(result, about)
