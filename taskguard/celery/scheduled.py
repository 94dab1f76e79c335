"""A scheduled run, in the worker: whatever task it is, its message is run once, and its slot knows how long it lasts.

Every task of a worker whose app has taskguard installed is ready for it. A plain task is held by the run of its slot
alone. A guarded one also has its own key, claimed inside: there its own receipts decide, and the run of the slot only
says to the schedulers that it lasts, and to the job that it was cancelled.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import cached_property
from typing import Any, NoReturn

from celery.app.task import Task
from celery.exceptions import Ignore, Reject, Retry
from celery.signals import worker_init
from celery.utils.imports import symbol_by_name
from celery.utils.time import maybe_make_aware

from taskguard.celery.guarding import Guarding, guarding_of, is_installed
from taskguard.celery.headers import ATTEMPT, SLOT, Headers
from taskguard.celery.inprocess import BodyInThisProcess
from taskguard.celery.message import Message, PutBack, Skipped
from taskguard.errors import StoreError, StoreUnavailableError
from taskguard.guard import new_attempt
from taskguard.interrupt import came_by_signal
from taskguard.policy import Policy
from taskguard.schedule import Note, claim_of, gives_up
from taskguard.store import Claimant, Completed, Ending, Held, How
from taskguard.switch import is_off
from taskguard.waiting import pauses
from taskguard.work import Work

ENDED_BY_THE_SCHEDULE = ("revoked", "expired")
"""Cancelled, or given up when it had died. A guarded task does not go on then, whatever its own key says.

"skipped" is none of them: a guarded job that once met the run of another slot may have begun all the same."""
UNWINDS_WITHIN = 1.0
"""Seconds that a job waits for an earlier delivery of itself to tell the store that it is over."""

_logger = logging.getLogger("taskguard")


def note_of(request: Any) -> Note | None:
    """The slot that a delivery is for."""
    if request.called_directly or request.id is None or request.is_eager or is_off():
        return None
    if not isinstance(request.headers, Mapping) or not request.headers.get(SLOT):
        return None  # as most are: what else the message says is not read for it
    return Note.of(Headers.of(request.headers, str(request.id)).slot)


class SlotRun:
    """One delivery of a scheduled job. *own_key*: the task is guarded, and decides by itself what its end is."""

    def __init__(self, task: Any, note: Note, *, own_key: bool) -> None:
        self._task = task
        self._note = note
        self._own_key = own_key
        self._guarding = guarding_of(task.app)
        self._guard = self._guarding.guard
        self._message = Message(task, task.request)
        self._id = self._message.id
        policy = task.taskguard.policy if own_key else Policy()
        self._policy = Policy.of(
            lease=policy.lease,
            max_starts=policy.max_starts,
            keep_for=max(self._guarding.keep_of(note), policy.lease),
            on_lost="continue" if own_key and note.overlap != "cancel_other" else policy.on_lost,
        )
        attempt = getattr(task.request, ATTEMPT, "") or new_attempt()
        # A run whose end may not be told is not taken for dead: it would run again. And of a retry schedulers do not
        # have the message.
        kept = bool(task.acks_late) and self._guarding.settings.patience_at_the_end > 0 and not task.request.retries
        claim = claim_of(note, self._id, self._policy.lease, attempt, kept=kept)
        self._claim = replace(claim, floor=self._message.headers.floor)
        self._settled: BaseException | None = None
        """What left the body, once the store knows of it."""

    def __call__(self, body: Callable[[], Any], free_own_key: Callable[[], None] | None = None) -> Any:
        try:
            return self._deliver(body, free_own_key)
        except Exception as error:
            # Its time limit, say, which can come at any point of all this. Nothing is known of what it interrupted.
            if error is not self._settled and came_by_signal(error):
                self._cut_off(free_own_key)
            raise

    def _deliver(self, body: Callable[[], Any], free_own_key: Callable[[], None] | None) -> Any:
        try:
            answer = self._ask()
        except StoreError as error:
            return self._without_store(error, body)
        if isinstance(answer, Work):
            try:
                # A guarded task's own run says by itself that its body is at work here.
                with nullcontext() if self._own_key else BodyInThisProcess(self._claim.attempt):
                    return self._run(answer, body)
            finally:
                answer.abandon()
        if free_own_key is not None:
            if not isinstance(answer, Completed) or answer.how not in ENDED_BY_THE_SCHEDULE:
                return self._beside(body)
            self._free(free_own_key)  # which it has from its first try, if this is a retry
        if isinstance(answer, Completed):
            raise Ignore(f"slot {self._note.key} has {answer.how} before")
        return self._held(answer)

    def _cut_off(self, free_own_key: Callable[[], None] | None) -> None:
        """Celery takes an error for the end of the job: whatever it holds by now is freed, and no copy of it runs."""
        try:
            leave_end(self._guarding, self._note, self._id, "failed", self._claim.attempt)
            if free_own_key is not None:
                free_own_key()
        except (StoreError, TypeError) as error:  # arguments that do not fit have no key
            self._warn(error)

    # -- asking ----------------------------------------------------------------------------------------------------

    def _ask(self) -> Work | Held | Completed:
        headers = self._message.headers
        if not self._own_key and self._guarding.identity.is_other(self._guard, headers.store, headers.at):
            _logger.error("%s[%s] was scheduled by a beat that looks at another store", self._task.name, self._id)
            self._put_back("its scheduler looks at another store")
        started = time.monotonic()
        for pause in pauses(0.05, 0.2):
            answer = self._guard.begin(
                self._claim,
                self._policy,
                idempotency_key=self._note.key,
                scheduled_for=self._note.scheduled_for,
                schedule=self._note.schedule,
                tell=False,
                after_outage=headers.after_outage,
            )
            is_itself = isinstance(answer, Held) and answer.owner == self._id
            if not is_itself or time.monotonic() - started > UNWINDS_WITHIN:
                return answer
            time.sleep(pause)
        raise AssertionError("pauses never end")

    def _held(self, held: Held) -> NoReturn:
        try:
            is_over = gives_up(self._note, held, self._claim, self._guard.store)
        except StoreUnavailableError:  # whatever the app says of that: another run has the slot
            self._put_back_after_outage()
        if is_over:
            facts = {"holder": held.owner, "state": held.state, "since": held.since}
            self._guard.tell("slot_skipped", Claimant(self._note.schedule, self._id, ""), **facts)
            raise Ignore(f"slot {self._note.key} is skipped, {held.owner} is {held.state}")
        self._put_back(f"{held.owner} is {held.state}", within=held.remaining)

    def _put_back(self, why: str, *, within: float = float("inf")) -> NoReturn:
        self._message.put_back(f"{self._note.key}: {why}", longest=self._guarding.longest_delay, within=within)

    def _without_store(self, error: StoreError, body: Callable[[], Any]) -> Any:
        what = self._guarding.settings.on_store_error
        if self._own_key or what == "run_unguarded":
            return body()  # a guarded task asks by itself
        if what == "fail" or not isinstance(error, StoreUnavailableError):
            raise error
        return self._put_back_after_outage()

    def _put_back_after_outage(self) -> NoReturn:
        self._message.headers = self._message.headers.with_(after_outage=True)
        self._put_back("the store does not answer")

    def _free(self, own_key: Callable[[], None]) -> None:
        try:
            own_key()
        except StoreError:
            self._put_back_after_outage()

    # -- running ---------------------------------------------------------------------------------------------------

    def _run(self, work: Work, body: Callable[[], Any]) -> Any:
        if not self._own_key:  # there its own receipt says that it has ended
            work.patience = self._guarding.settings.patience_at_the_end
        try:
            with work:
                value = body()
        except (Retry, Ignore, Reject) as way_out:
            self._end(work, _end_of(way_out), way_out if self._goes_on(way_out) else None)
            raise
        except Exception as error:
            if work.is_own_loss(error):
                if self._own_key:
                    raise Ignore(f"slot {self._note.key} is cancelled") from error  # and its own key is free
                self._lost(work, error)
            self._end(work, "failed")
            self._settled = error
            raise
        self._end(work, "succeeded")
        return value

    def _lost(self, work: Work, error: Exception) -> NoReturn:
        """Put it back. If a resource refused its token, the next one is higher; else that was one of its starts."""
        floor = work.floor_after(error)
        headers, settings = self._message.headers, self._guarding.settings
        self._message.headers = headers.with_(floor=max(floor, headers.floor))
        work.patience = 0.0  # its body has not ended: should the store be silent, the next delivery asks
        with suppress(StoreError):
            work.requeue(settings.queued_for, copy_for=settings.republish_after, keep_starts=not floor)
        self._put_back(str(error) if floor else "it lost its lease")

    def _end(self, work: Work, how: How, goes_on: BaseException | None = None) -> None:
        settings = self._guarding.settings
        try:
            if goes_on is not None:
                delay = _delay_of(goes_on)
                work.requeue(settings.queued_for + delay, copy_for=settings.republish_after + delay)
            elif how == "succeeded":
                work.complete(how, None)
            else:
                work.release(how)
        except StoreError as error:  # the lease runs out by itself
            self._warn(error)

    def _beside(self, body: Callable[[], Any]) -> Any:
        """Its own key says what to do; the run of the slot is another delivery's, or over."""
        how: How = "succeeded"
        try:
            return body()
        except (Retry, Ignore, Reject) as way_out:
            how = "released" if self._goes_on(way_out) else _end_of(way_out)
            raise
        except Exception as error:
            how, self._settled = "failed", error
            raise
        finally:
            if how != "released":
                self._leave_end(how)

    def _leave_end(self, how: How) -> None:
        try:
            leave_end(self._guarding, self._note, self._id, how, new_attempt())
        except StoreError as error:
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        _logger.warning("the end of %s[%s] is not told to its schedule: %s", self._task.name, self._id, error)

    def _goes_on(self, way_out: BaseException) -> bool:
        """Whether the job will come again under its own id."""
        if isinstance(way_out, Reject):
            return bool(way_out.requeue and self._task.acks_late)  # else the broker has no message to put back
        return isinstance(way_out, (Retry, PutBack))


def _end_of(way_out: BaseException) -> How:
    if isinstance(way_out, Reject):
        return "rejected"
    return "skipped" if isinstance(way_out, Skipped) else "ignored"


def _delay_of(way_out: BaseException) -> float:
    """Seconds until the message of a retry may be taken: before that it is not lost."""
    when = getattr(way_out, "when", None)
    if isinstance(when, datetime):
        left: float = (maybe_make_aware(when) - datetime.now(timezone.utc)).total_seconds()
        return max(0.0, left)
    return float(when) if isinstance(when, (int, float)) else 0.0


def leave_end(guarding: Guarding, note: Note, owner: str, how: How, attempt: str) -> None:
    """The job has ended, whoever holds the run of its slot."""
    ending = Ending(how=how, keep_for=guarding.keep_of(note))
    guarding.calls.store.release(Claimant(note.run, owner, attempt), ending, anyway=True)


# -- plain tasks ---------------------------------------------------------------------------------------------------


class SlotAware(Task):  # type: ignore[misc]
    """In front of a plain task's class, in a worker."""

    abstract = True

    @cached_property
    def Request(self) -> type:  # noqa: N802 - Celery's name
        from taskguard.celery.scheduled_request import scheduled_request  # the worker's own code

        return scheduled_request(symbol_by_name(super().Request))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        note = note_of(self.request)
        if note is None:
            return super().__call__(*args, **kwargs)
        return SlotRun(self, note, own_key=False)(lambda: super(SlotAware, self).__call__(*args, **kwargs))


def watch_slots() -> None:
    """Let workers recognise the messages of slots, whatever task they are for."""
    worker_init.connect(_make_ready)  # one for all apps: a receiver for each would keep it for ever


def _make_ready(sender: Any = None, **_: Any) -> None:
    if sender is not None and is_installed(sender.app):
        for task in list(sender.app.tasks.values()):
            if not hasattr(task, "taskguard"):
                make_aware(task)


def make_aware(task: Any) -> None:
    base = type(task)
    if not issubclass(base, SlotAware):
        task.__class__ = type(base.__name__, (SlotAware, base), {"__module__": base.__module__})
