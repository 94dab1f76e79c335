"""One delivery of a guarded job: claim, run the body, settle; or wait, join, or answer.

Each question to the store obeys `on_store_error`; and once the store has said that another run has the key, a store
that goes away is no reason to run beside it, nor to call the job failed: it is put back, and asks again.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError
from rq.job import Job, Retry

from taskguard import interrupt
from taskguard.errors import (
    DuplicateTaskError,
    EarlierFailureError,
    KeyArgumentError,
    LeaseLostError,
    PayloadMismatchError,
    StoreError,
    StoreUnavailableError,
    TooManyStartsError,
)
from taskguard.lone_fence import lone_fence
from taskguard.places import is_queued
from taskguard.rq.answer import NothingToTell, answer
from taskguard.rq.delivery import AWAY, Delivery
from taskguard.rq.guarding import BEGUN, JobGuard
from taskguard.rq.noted import PutBack, noted
from taskguard.rq.obtaining import Obtaining
from taskguard.rq.owner import shown
from taskguard.rq.settle import settle_for
from taskguard.store import Completed, Entry
from taskguard.switch import is_off
from taskguard.work import Work, effects_of

_logger = logging.getLogger("taskguard")


def run(job: Job, guarded: JobGuard, args: Any, kwargs: Any) -> Any:
    return _run_unguarded(job, guarded, args, kwargs) if is_off() else Run(job, guarded)(args, kwargs)


def _run_unguarded(job: Job, guarded: JobGuard, args: Any, kwargs: Any) -> Any:
    key = guarded.name
    with suppress(TypeError):  # arguments that do not fit: the body says so itself
        key = guarded.keys(args, kwargs)
    with lone_fence(key, job.id, noted(job).note.idempotency_key):
        value = guarded.call(args, kwargs)
        return _awaited(value) if inspect.iscoroutine(value) else value


class Run:
    def __init__(self, job: Job, guarded: JobGuard, delivery: type[Delivery] = Delivery) -> None:
        self.it = delivery(job, guarded)
        self.job = self.it.job
        self.guarded = guarded
        self.is_settled = False
        self._is_untold = False
        """The body has ended, and the store has not heard of it."""

    def __call__(self, args: Any, kwargs: Any) -> Any:
        if self.job.note.slot is not None and not self.job.is_in_slot:
            from taskguard.rq.slot import run_in_slot

            return run_in_slot(self.job, lambda: self(args, kwargs))
        setattr(self.job, BEGUN, True)
        recorder = self.it.guard.recorder
        if recorder is not None:
            recorder.hold_back()  # a horse tells all at its end; one that lives for long from its first renewal on
        try:
            return self._run(args, kwargs)
        finally:
            setattr(self.job, BEGUN, False)
            if recorder is not None:
                recorder.flush(last=True)  # a horse ends without what Python does at exit
                recorder.go_on()

    def _run(self, args: Any, kwargs: Any) -> Any:
        try:
            self.it.find_key(args, kwargs)
        except KeyArgumentError:
            raise
        except TypeError:
            return self.guarded.call(args, kwargs)  # arguments that do not fit: the body says so itself
        try:
            found = self._obtain()
        except StoreError as error:
            return self._without_store(error, args, kwargs)
        except AWAY:
            if self.it.is_sync:
                raise
            return self.it.put_back(None, "the queue's Redis does not answer")
        except TooManyStartsError:
            self.it.free_place()
            raise
        except (DuplicateTaskError, PayloadMismatchError) as error:
            self.it.free_place()
            self.it.leave_refusal(error)
            raise
        except BaseException as error:
            # Its time is over, say. Whether the key was granted is not known; by the attempt it is let go.
            if interrupt.came_by_signal(error):
                with suppress(StoreError, RedisError):
                    self._let_go(error)
            raise
        if isinstance(found, PutBack):
            return found
        if isinstance(found, Completed):
            return answer(self.it, found)
        return self._work(found, args, kwargs)

    def _obtain(self) -> Work | Completed | PutBack:
        return Obtaining(self.it)()

    def _let_go(self, error: BaseException) -> None:
        settle_for(self.job, self.guarded, self.it.attempt, error=error)

    # -- the body --------------------------------------------------------------------------------------------------

    def _work(self, work: Work, args: Any, kwargs: Any) -> Any:
        work.patience = self.it.patience  # a body that has run is not run again because the store is away
        try:
            back = self._take_place(work)
            return self._body(work, args, kwargs) if back is None else back
        except BaseException as error:
            # The time of the job can be over at any point, also after its body, in these very lines.
            if interrupt.came_by_signal(error) and not self.is_settled:
                with suppress(StoreError):
                    self._fail(work, error)
            raise
        finally:
            work.abandon()

    def _body(self, work: Work, args: Any, kwargs: Any) -> Any:
        try:
            with work:
                value = self.guarded.call(args, kwargs)
                if inspect.iscoroutine(value):
                    value = _awaited(value)
        except BaseException as error:  # RQ takes any of them for the end of the job
            if work.is_own_loss(error):
                floor = work.floor_after(error)
                self.it.change(floor=max(floor, self.it.note.floor))
                if self.it.is_sync:  # nothing can be put back
                    self.is_settled = True
                    if work.release_quietly():
                        self.it.guard.raise_tokens(work.lease.key, floor, self.it.policy)
                    raise
                if self.it.has_job() and self._kept(work, keep_starts=not floor):
                    return self.it.put_back(None, str(error) if floor else "it lost its lease")
                work.release_quietly()
                return self._lost(work)
            if self._is_loss_of_slot(error):
                self.is_settled = True
                work.release_quietly()  # it has not failed, and may come again
                raise
            self.it.forget_waiting()
            failure = error
            if not self._settled(lambda: self._fail(work, failure)):
                return self._lost(work)
            raise
        if isinstance(value, Retry):
            return self._retry(work, value)
        if self.job.is_scheduled_again:
            self.it.note_end()
        if not self._settled(lambda: self._succeed(work, value)):
            return self._lost(work)
        return value

    def _fail(self, work: Work, error: BaseException) -> bool:
        if self.job.should_retry:
            return self._requeue(work, self.job.get_retry_interval())
        self.it.note_end()
        accepted = work.fail(error)
        if accepted:
            self.it.free_place()
        return accepted

    def _succeed(self, work: Work, value: Any) -> bool:
        if self.job.result_ttl == 0 and self.it.policy.on_done == "rerun":
            return work.complete("succeeded", None)  # nobody will ask what it was
        return work.succeed(value)

    def _retry(self, work: Work, retry: Retry) -> Any:
        """The body wants to be run again."""
        count = self.job.number_of_retries or 0
        self.it.forget_waiting()
        if count and count >= retry.max:
            words = f"it wants more than {retry.max} retries"
            error = EarlierFailureError(self.it.key, shown(self.it.owner), words)
            self.it.note_end()
            accepted = self._settled(lambda: work.fail(error))
            self.it.free_place()
        else:
            accepted = self._settled(lambda: self._requeue(work, Retry.get_interval(count, retry.intervals)))
        return retry if accepted else self._lost(work)

    def _requeue(self, work: Work, delay: float = 0.0, *, keep_starts: bool = False) -> bool:
        if work.lease.key != self.it.name:
            return work.release()  # it ran beside another one, and the next run has an entry of its own
        seconds = self.guarded.settings.queued_for + delay
        return work.requeue(seconds, copy_for=seconds, keep_starts=keep_starts)

    def _settled(self, end: Callable[[], bool]) -> bool:
        """Bring the end to the store; False if it is refused, as another run has begun, or cannot be told."""
        try:
            accepted = end()
            self.is_settled = True
            return accepted
        except StoreError as error:
            _logger.error("%s[%s] has ended and the store cannot be told: %s", self.guarded.name, self.job.id, error)
            if self.guarded.settings.on_store_error == "run_unguarded":
                return True
            if self.guarded.settings.on_store_error == "fail" or self.it.is_sync:
                raise
            self._is_untold = True
            return False

    # -- the place in the queue ------------------------------------------------------------------------------------

    def _take_place(self, work: Work) -> PutBack | None:
        """The job starts: the next one may take its place in the queue. A newer job may have taken it already."""
        it = self.it
        if not it.place or it.place == it.name:
            return None
        if it.is_the_next:
            try:
                newer = self._newer(it.guard.store.get(it.place))
            except StoreError as error:  # whether a newer call has taken the place is not known: not yet, then
                work.give_up()
                return it.put_back(None, f"the store does not say whether it has its place: {error}")
            if newer:
                work.give_up()
                it.change(join=newer)
                return it.put_back(None, f"it joins {newer}, which has newer arguments")
        it.free_place()
        return None

    def _newer(self, entry: Entry | None) -> str:
        """The job with newer arguments that this one was replaced by."""
        if entry is None or entry.owner in ("", self.it.owner):
            return ""
        if not is_queued(entry):
            return "" if entry.owner == self.it.note.join else entry.owner  # one that it joined ended with nothing
        return "" if self.it.twin(entry).is_gone else entry.owner

    # -- a lease that was lost -------------------------------------------------------------------------------------

    def _kept(self, work: Work, *, keep_starts: bool) -> bool:
        """Requeue a run that lost its lease, if nobody has the key by now. That was one of its starts.

        A run whose token a resource refused, and that nobody has replaced, has not lost it: the next token is higher.
        """
        work.patience = 0.0  # its body has not ended: should the store be silent, the next delivery asks
        try:
            return self._requeue(work, keep_starts=keep_starts)
        except StoreError:
            return False

    def _lost(self, work: Work) -> Any:
        """This run was replaced. It has nothing to say about a job that somebody else has in hand."""
        if self._is_untold and self.it.has_job():
            return self.it.put_back(None, "the store cannot be told of its end")
        if self._is_left_to_us():
            return self.it.put_back(None, "it lost its lease")
        if self.it.has_our_worker:
            raise NothingToTell(f"{self.it.key}: the lease with token {work.lease.token} is over")
        raise LeaseLostError(self.it.key, work.lease.token)

    def _is_loss_of_slot(self, error: BaseException) -> bool:
        """Whether a scheduled job has lost the claim of its slot, which is around that of its function."""
        return isinstance(error, LeaseLostError) and error.key == (self.job.note.slot or {}).get("run")

    def _is_left_to_us(self) -> bool:
        """Whether nobody else will end this job: it was another one that took the key, or somebody's hand."""
        if not self.it.has_job():
            return False
        try:
            entry = self.it.guard.store.get(self.it.name)
        except StoreError:
            return True  # RQ has given it to nobody else, and the next delivery asks
        is_held = entry is not None and entry.state in ("queued", "running") and entry.remaining > 0
        return not (is_held and entry is not None and self.it.has_id_of(entry.owner))

    # -- the store is away -----------------------------------------------------------------------------------------

    def _without_store(self, error: StoreError, args: Any, kwargs: Any) -> Any:
        what, it = self.guarded.settings.on_store_error, self.it
        if what == "run_unguarded" and not it.was_held:
            _logger.warning("%s[%s] runs unguarded: %s", self.guarded.name, self.job.id, error)
            it.clock.start()
            idempotency_key, effect = it.known_by()
            effects = effects_of(it.policy, it.owner, idempotency_key, effect)
            with lone_fence(it.name, it.owner, idempotency_key, effects) as fence:
                if it.scheduled is not None:
                    fence.scheduled_for, fence.schedule = it.scheduled.scheduled_for, it.scheduled.schedule
                value = self.guarded.call(args, kwargs)
                return _awaited(value) if inspect.iscoroutine(value) else value
        passing = isinstance(error, StoreUnavailableError)
        if (what == "fail" and not it.was_held) or it.is_sync or not passing:
            raise error
        it.change(after_outage=True)
        return it.put_back(None, "the store does not answer")  # the guard has been asking for a while already


def _awaited(coroutine: Any) -> Any:
    # As RQ does; but here, where the lease is renewed.
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()
