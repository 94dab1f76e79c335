"""One delivery of a job, in the process that runs its body: what only Celery can do for it. The engine decides."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, NoReturn

from celery.exceptions import Ignore, Reject, Retry

from taskguard.celery import first_success
from taskguard.celery.call import Call
from taskguard.celery.guarding import Guarding, TaskGuard, guarding_of
from taskguard.celery.headers import ATTEMPT
from taskguard.celery.held_back import HeldBack, delay_of
from taskguard.celery.inprocess import BodyInThisProcess
from taskguard.celery.job import layers_of, place_of_job, terms_of
from taskguard.celery.message import Message
from taskguard.celery.outcomes import outcome_of
from taskguard.celery.replay import replay
from taskguard.engine import effects as fx
from taskguard.engine.drive import drive, settle_all
from taskguard.engine.effects import Settle
from taskguard.engine.envelope import Envelope
from taskguard.engine.layers import Facts, Layer
from taskguard.engine.under import known_by, loss_in, raising, run_under
from taskguard.engine.worker import Delivery
from taskguard.errors import ConfigurationError, KeyArgumentError, StoreError, StoreUnavailableError
from taskguard.guard import Guard, new_attempt
from taskguard.interrupt import came_by_signal
from taskguard.lone_fence import lone_fence
from taskguard.schedule.note import Note
from taskguard.store import Claimant, Completed, Entry, Held, How, Lease
from taskguard.work import Work, effects_of

ENDED = "_taskguard_ended"
"""On the request of a job whose end is in the store: which entry it had, and how it ended."""

_logger = logging.getLogger("taskguard")
_in_hand: ContextVar[CeleryDelivery | None] = ContextVar("taskguard_celery_delivery", default=None)


class Deferred(Ignore):  # type: ignore[misc]
    """This delivery ends, and the job does not: its message was published again, under the same id."""


def running() -> CeleryDelivery | None:
    """The delivery whose body this code is part of."""
    return _in_hand.get()


def deliver(task: Any, body: Callable[..., Any], slot: Note | None, args: Any, kwargs: Any) -> Any:
    """Run *body* for the message in hand, if it is to run now; else answer, defer or drop it."""
    port = CeleryDelivery(task, slot, lambda: body(*args, **kwargs))
    delivery = port.begin(args, kwargs)
    if delivery is None:
        return body(*args, **kwargs)  # which says so itself, and nothing of us is in its traceback
    try:
        first = delivery.begin(port.other_store())
    except StoreError as error:
        first = delivery.store_away(error)
    return drive(delivery, [port.guard] * len(delivery.layers), port, first)


class CeleryDelivery:
    def __init__(self, task: Any, slot: Note | None, body: Callable[[], Any]) -> None:
        self.task = task
        self.request = task.request
        self.guarding: Guarding = guarding_of(task.app)
        self.guard: Guard = self.guarding.guard
        self.guarded: TaskGuard | None = getattr(task, "taskguard", None)
        self.message = Message(task, self.request)
        self.id = self.message.id
        self.name = f"{task.name}[{self.id}]"
        self.arguments = ""
        self.attempt: str = getattr(self.request, ATTEMPT, "") or new_attempt()
        """Made by the worker's parent process; an eager call has none of its own."""
        self.slot = slot
        self.held_back = HeldBack(self)
        self._body = body
        self._lease: Lease | None = None

    # -- what it is ------------------------------------------------------------------------------------------------

    def begin(self, args: Any, kwargs: Any) -> Delivery | None:
        """The delivery, with its key; None if the arguments do not fit the body."""
        if self.guarded is not None and not self._identify(self.guarded, args, kwargs):
            return None
        envelope = self.message.envelope
        # Nobody holds the handle of a scheduled call.
        awaited = self.message.is_awaited if self.slot is None else self.message.is_linked
        facts = Facts(self.attempt, self.id.__eq__, awaited, not self.request.is_eager)
        place = place_of_job(self.guarded, envelope, self.slot)
        return Delivery.of(terms_of(self.guarding), facts, envelope, self._layers(), place)

    def _identify(self, guarded: TaskGuard, args: Any, kwargs: Any) -> bool:
        """False if the arguments do not fit the body. A scheduled job that has no key ends within its slot."""
        try:
            self.message.envelope = guarded.identified(self.message.envelope, args, kwargs)
        except Exception as error:
            is_misfit = isinstance(error, TypeError) and not isinstance(error, KeyArgumentError)
            if self.slot is None and is_misfit:
                return False
            if self.slot is None or came_by_signal(error):
                raise
            self.guarded = None
            self._body = self._body if is_misfit else raising(error)
            return True
        self.arguments = guarded.arguments(args, kwargs)
        return True

    def _layers(self) -> tuple[Layer, ...]:
        envelope, retries = self.message.envelope, self.request.retries or 0
        return layers_of(self.task, self.guarding, self.guarded, envelope, self.id, self.slot, retries)

    def fail_all(self, error: BaseException) -> None:
        """The job ends here, whatever became of its claims: Celery is about to call it failed."""
        steps, layers = [], self._layers()
        for at in range(len(layers) - 1, -1, -1):
            layer = layers[at]
            step = Settle("release", layer.entry, layer.owner, self.attempt, at=at, how="failed", anyway=True)
            step.keep_for, step.error = layer.policy.keep, error if layer.slot is None else None
            steps.append(step)
        settle_all([self.guard] * len(layers), steps)
        self.note_end("failed")

    def other_store(self) -> BaseException | None:
        envelope = self.message.envelope
        if not self.guarding.identity.is_other(self.guard, envelope.store, envelope.at):
            return None
        problem = (
            f"{self.name} was published by a process that uses another store than {self.guard.store!r}; give both the "
            "same taskguard_store. The job waits"
        )
        _logger.error("%s", problem)
        return ConfigurationError(problem)

    def _known_by(self) -> tuple[str, str]:
        envelope, slot = self.message.envelope, "" if self.slot is None else self.slot.key
        is_reused = self.guarded is not None and self.guarded.policy.on_done != "rerun"
        return known_by(envelope.key, self.id, given=envelope.idempotency_key, slot=slot, is_reused=is_reused)

    # -- the engine's port -----------------------------------------------------------------------------------------

    def work(self, layer: Layer, lease: Lease, asked: float) -> Work:
        idempotency_key, effect = self._known_by()
        moment, schedule = (None, "") if self.slot is None else (self.slot.scheduled_for, self.slot.schedule)
        self._lease = lease
        return Work(self.guard, layer.policy, lease, asked, idempotency_key, moment, effect, schedule)

    def look_after(self, holder: Held | Entry) -> fx.Known:
        return "unknown"

    def stand_in(self, holder: Held, envelope: Envelope) -> None:
        self.message.publish_for(holder.owner, envelope)
        with suppress(StoreUnavailableError):
            self.guard.store.mark([(holder, holder.remaining)], copy_for=self.guarding.settings.republish_after)

    def rename(self, done: Completed) -> NoReturn:
        raise AssertionError("Celery gives no id to two jobs")

    def republish(self, envelope: Envelope, within: float) -> None:
        self.message.publish_again(envelope, longest=self.guarding.longest_delay, within=within)

    def wait(self, wait: fx.Wait) -> tuple[bool, How | None]:
        return False, None  # a message can be delayed: nothing waits in a worker

    def before(self, step: fx.Settle) -> None:
        """Nothing: Celery is answered after the store."""

    def comes_again(self, error: BaseException) -> tuple[bool, float] | None:
        # A time limit is a failure. What ends the process is not: its parent settles, or the lease runs out.
        return (False, 0.0) if isinstance(error, Exception) else None

    def run(self, works: Sequence[Work]) -> fx.Ended:
        if not self.request.is_eager:
            works[-1].patience = self.guarding.settings.patience_at_the_end
        if self.guarded is not None:
            self._report_started()
        with BodyInThisProcess(self.attempt):
            try:
                return self._run_and_read(works)
            except Reject as rejected:  # the broker did not take what was to leave before the end
                return self._read(works, rejected)
            except Exception as error:  # nor can it be written
                return fx.Ended("failed", error=error)

    def _run_and_read(self, works: Sequence[Work]) -> fx.Ended:
        try:
            return self._run(works)
        except (Retry, Ignore, Reject) as way_out:
            return self._read(works, way_out)
        except Exception as error:
            lost = loss_in(works, error)
            if lost is None and self.held_back.calls:
                return self.held_back.ended(error)  # it had asked for a retry: that goes out, as without a guard
            return lost or fx.Ended("failed", error=error)

    def _run(self, works: Sequence[Work]) -> fx.Ended:
        before = _in_hand.set(self if self.guarded is not None else _in_hand.get())
        try:
            value = run_under(works, self._body)
        finally:
            _in_hand.reset(before)
        if self.held_back.calls:  # a retry that was not raised
            return self.held_back.ended(None, value)
        return fx.Ended("returned", value=value, outcome=outcome_of(self, value) if self.guarded is not None else None)

    def _read(self, works: Sequence[Work], way_out: BaseException) -> fx.Ended:
        """What the body's own word to Celery means."""
        if isinstance(way_out, Reject):
            goes_back = way_out.requeue and self.task.acks_late  # else the broker has no message to give back
            return fx.Ended("goes_back" if goes_back else "rejected", error=way_out)
        if self.guarded is None and isinstance(way_out, Retry):
            return fx.Ended("goes_back", error=way_out, delay=delay_of(way_out))  # by a message that has left already
        ended = self.held_back.ended(way_out)
        if isinstance(way_out, Retry):
            ended.floor = works[-1].floor_after(way_out.exc)
        return ended

    def _report_started(self) -> None:
        task, request = self.task, self.request
        if task.taskguard_tracks_start and not self.message.ignores_result and not request.is_eager:
            started = {"pid": os.getpid(), "hostname": request.hostname}
            try:
                task.backend.store_result(self.id, started, "STARTED", request=request)
            except Exception as error:  # whatever the backend's driver raises: it is only a notice
                if came_by_signal(error):
                    raise
                _logger.warning("%s: could not store the STARTED state: %s", self.name, error)

    # -- last effects ----------------------------------------------------------------------------------------------

    def finish(self, effect: fx.Last) -> Any:
        if isinstance(effect, fx.Return):
            return self._return(effect)
        if isinstance(effect, fx.Raise):
            if effect.ended_as is not None:
                self.note_end(effect.ended_as)
            raise effect.error
        if isinstance(effect, fx.GoOn):
            return self.held_back.go_on(effect, self._lease)
        if isinstance(effect, fx.Replay):
            return replay(self, effect.done)
        if isinstance(effect, fx.Defer):
            self.defer(effect.envelope, fx.WHY[effect.reason], effect.within)
        if isinstance(effect, fx.RunUnguarded):
            return self._run_unguarded(effect.error)
        assert isinstance(effect, fx.Drop)
        if effect.done is not None and self.guarded is not None and not effect.why.startswith("its slot"):
            return replay(self, effect.done)
        raise Ignore(f"{self.message.envelope.key or self.name}: {effect.why}")

    @property
    def is_refused_at_once(self) -> bool:
        """Whether the job fails if another one runs."""
        return self._layers()[-1].conflict == "raise"

    def _return(self, effect: fx.Return) -> Any:
        if self.guarded is not None and effect.ended_as is not None:
            if effect.is_known and not self.message.ignores_result:
                first_success.expect(self.task.backend, self.id)
            self.note_end(effect.ended_as)
        return effect.value

    def defer(self, envelope: Envelope, why: str, within: float = float("inf")) -> NoReturn:
        try:
            self.message.publish_again(envelope, longest=self.guarding.longest_delay, within=within)
        except Reject:
            raise
        except Exception as error:  # it was acknowledged before, and the broker does not take it again
            if not came_by_signal(error):
                self.fail_all(error)
            raise
        raise Deferred(f"deferred: {self.name} {why}")

    def _run_unguarded(self, error: BaseException) -> Any:
        _logger.warning("%s runs unguarded: %s", self.name, error)
        if self.guarded is None:
            return self._body()
        idempotency_key, effect = self._known_by()
        effects = effects_of(self.guarded.policy, self.id, idempotency_key, effect)
        with lone_fence(self.message.envelope.key, self.id, idempotency_key, effects) as fence:
            if self.slot is not None:
                fence.scheduled_for, fence.schedule = self.slot.scheduled_for, self.slot.schedule
            return self._body()

    def note_end(self, how: How) -> None:
        """For the task, which marks the job as answered once Celery has done so."""
        if self.guarded is not None and self.message.is_linked:
            entry = self._layers()[-1].entry
            setattr(self.request, ENDED, (Claimant(entry, self.id, self.attempt), how))

    def hold_back(self, call: Call) -> Any:
        """A message under this very id leaves when the lease of the body has ended."""
        self.held_back.calls.append(call)
        return self.guarding.app.AsyncResult(self.id)
