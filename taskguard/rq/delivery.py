"""One delivery of a job, in the process that runs its body: what only RQ can do. The engine decides.

RQ cannot delay a job without a scheduler. So a job that cannot run now waits here for a while. Then the worker defers
it: it enqueues the same id again at the end of the queue, so that other jobs get their turn.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

from redis.exceptions import RedisError
from rq.job import Job, Retry

from taskguard.engine import effects as fx
from taskguard.engine.drive import Port
from taskguard.engine.envelope import Envelope
from taskguard.engine.layers import Facts, Layer
from taskguard.engine.leaving import COPY_RUNS
from taskguard.engine.under import ended_by, run_under
from taskguard.engine.unguarded import UnguardedFence
from taskguard.engine.work import Work
from taskguard.engine.worker import Delivery
from taskguard.errors import (
    EarlierFailureError,
    LeaseLostError,
    StoreError,
    TooManyStartsError,
)
from taskguard.guard import new_attempt
from taskguard.protocol.store import Completed, Entry, Held, How
from taskguard.rq.claims import JobClaims
from taskguard.rq.clock import LONGEST_WAIT, JobClock
from taskguard.rq.guarded_job import Deferral, GuardedJob, as_guarded_job
from taskguard.rq.guarding import BEGUN, JobGuard
from taskguard.rq.holder_job import HolderJob
from taskguard.rq.job_state import AWAY, given_up, is_ours, patiently
from taskguard.rq.owner import job_id_of, next_owner, occurrence_of, shown
from taskguard.rq.replay import NothingToReport, replay
from taskguard.runtime.backoff import pauses
from taskguard.runtime.clocks import since_boot
from taskguard.runtime.switch import is_off
from taskguard.runtime.whereabouts import work_as

ATTEMPT = "_taskguard_attempt"
"""An attribute of a job that a guarded worker runs: the attempt, which the parent process knows too."""
UNTIL_REDIS_IS_BACK = 3600.0
"""Seconds to retry an unavailable Redis, for a body that has run or a job that must wait: neither is given up."""
BEHIND = 1.0
"""Seconds that a job waits for a queued holder, which may be behind it in the same queue."""
MARGIN = 1.0
OTHER_STORE = 5.0
"""Seconds that a job waits whose caller uses another store than this worker, or whose store refuses this worker."""

_logger = logging.getLogger("taskguard")


def deliver(job: Job, guarded: JobGuard | None, body: Callable[[], Any], args: Any, kwargs: Any) -> Any:
    """Run *body* for the job if it may run now; else replay an earlier outcome, defer the job or drop it."""
    if is_off():
        return _run_unguarded(job, guarded, body, args, kwargs)
    port = RQDelivery(job, guarded, body)
    setattr(port.job, BEGUN, True)
    recorders = [guard.recorder for guard in port.guards if guard.recorder is not None]
    for recorder in recorders:
        recorder.hold_back()  # a horse writes its history when it ends; a long run, from its first renewal on
    try:
        return port.deliver(args, kwargs)
    finally:
        setattr(port.job, BEGUN, False)
        for recorder in recorders:
            recorder.flush(last=True)  # a horse ends without running atexit handlers
            recorder.go_on()


def _run_unguarded(job: Job, guarded: JobGuard | None, body: Callable[[], Any], args: Any, kwargs: Any) -> Any:
    if guarded is None:
        return body()
    key = guarded.name
    with suppress(TypeError):  # the body refuses arguments that do not fit
        key = guarded.keys(args, kwargs)
    with UnguardedFence(key, job.id, as_guarded_job(job).envelope.idempotency_key):
        return to_its_end(body)


class RQDelivery(Port):
    guarded: JobGuard | None

    def __init__(self, job: Job, guarded: JobGuard | None, body: Callable[[], Any]) -> None:
        self.guarded = guarded
        self.body = body
        on_error = guarded.settings.on_store_error if guarded is not None else "retry"
        self.patience = UNTIL_REDIS_IS_BACK if on_error == "retry" else 0.0
        """How long to retry an unavailable Redis, if longer than the guard's patience."""
        found = job if isinstance(job, GuardedJob) else patiently(lambda: as_guarded_job(job), self.patience)
        self.job: GuardedJob = found.take_in_hand()
        self.claims = JobClaims(self.job, guarded)
        self.guards = self.claims.guards()
        self.slot = self.claims.slot
        self.envelope = self.job.envelope
        self.name = f"{guarded.name if guarded is not None else self.job.func_name}[{self.job.id}]"
        self.attempt = getattr(job, ATTEMPT, "") or new_attempt()
        self.is_sync = self.job.worker_name == "sync"
        """Run by a queue with `is_async=False`, in its caller's process: nothing can be deferred."""
        self._began = since_boot()
        self._has_spent_time = False
        """The job's timeout kept running while it waited."""
        self._has_run = False
        self._has_recorded_end = False
        self._retry: Retry | None = None
        if job.worker_name and not self.is_sync:
            work_as(job.worker_name)

    def deliver(self, args: Any, kwargs: Any) -> Any:
        try:
            return super().deliver(args, kwargs)
        except AWAY:
            if self._has_run or self.is_sync or "machine" not in vars(self):
                raise
            return self._defer(self.machine.envelope, "waits for the queue's Redis, which does not answer")

    # -- what it is ------------------------------------------------------------------------------------------------

    def begin(self) -> Delivery:
        if self.guarded is None and self.claims.guarded is not None:
            self.claims = JobClaims(self.job, None)
        job, claims = self.job, self.claims
        job.envelope = self.envelope
        self.body = partial(to_its_end, self.body)
        facts = Facts(
            attempt=self.attempt,
            is_this_job=claims.is_this_job,
            awaited=claims.slot is None,
            can_wait=not self.is_sync,
            retried=job.should_retry,
            reuses_ids=True,
            shown=shown,
        )
        return Delivery.of(claims.terms(), facts, self.envelope, claims.layers(self.envelope), claims.queue_entry())

    @property
    def key(self) -> str:
        return self.envelope.key or self.name

    @cached_property
    def clock(self) -> JobClock:
        return JobClock(is_own=not self.is_sync)

    @cached_property
    def _pauses(self) -> Iterator[float]:
        return pauses(longest=1.0)

    def _has_job(self) -> bool:
        self.clock.stop()  # its body has ended
        return is_ours(self.job, self.patience)

    @property
    def has_our_worker(self) -> bool:
        return hasattr(self.job, ATTEMPT)

    def is_for_another_store(self) -> bool:
        guarded, envelope = self.guarded, self.envelope
        return guarded is not None and guarded.is_for_another_store(self.guards[-1], envelope, self.job.connection)

    @property
    def occurrence(self) -> str:  # type: ignore[override]
        return occurrence_of(self.job, self.machine.layers[-1].owner)

    # -- the engine's port -----------------------------------------------------------------------------------------

    def look_after(self, holder: Held | Entry) -> fx.Known:
        holder_job = HolderJob(holder, self.job.connection, type(self.job), self.job.serializer)
        holder_job.wait_until_it_appears(self.guards[-1].store)
        if holder_job.is_gone:
            holder_job.end(self.guards[-1], self.machine.layers[-1].policy)
            return "gone"
        holder_job.enqueue_if_lost()
        return "put_off" if holder_job.is_put_off else "coming"

    def rename(self, done: Completed) -> tuple[tuple[Layer, ...] | None, bool]:
        """Whether the end found is that of an earlier occurrence of this id; then this delivery is the next one."""
        machine, again = self.machine, self.job.is_scheduled_again
        is_slot = machine.layers[machine.at].slot is not None
        if (is_slot and done.how != "failed") or (done.how == "succeeded" and not again):
            return None, False
        following = next_owner(self.job, done.owner)
        if not following:
            return None, False
        if is_slot:
            return self.claims.layers(machine.envelope, slot_owner=following), False
        self.claims.owner = following
        # A person requeued it from the registry of failed jobs: that is an order to run, not a duplicate.
        return self.claims.layers(machine.envelope, slot_owner=machine.layers[0].owner), not again

    def wait(self, wait: fx.Wait) -> tuple[bool, How | None]:
        if wait.reason == "other_store":
            self.clock.stop()
            time.sleep(OTHER_STORE)
            return False, None
        lease = self.machine.layers[self.machine.at].policy.lease
        patience = BEHIND if wait.reason == "queued" else min(lease + MARGIN, LONGEST_WAIT)
        pause = next(self._pauses)
        if since_boot() - self._began + pause > self._most(patience):
            return False, None
        time.sleep(pause)
        return True, given_up(self.job)

    def _most(self, patience: float) -> float:
        """How long it may wait: half of its timeout at most, unless the timeout can be stopped meanwhile."""
        timeout = self.job.timeout or 0
        if self.clock.stop() or timeout <= 0:
            return patience
        self._has_spent_time = True
        return min(patience, timeout / 2)

    def before(self, step: fx.Settle) -> None:
        """Record an end in the job's hash before the store: a second copy checks there whether it is its own."""
        if isinstance(step.error, TooManyStartsError):
            self.job.record_end(for_good=True)
            self._has_recorded_end = True
        is_refused = step.spares_other_run and self.machine.layers[step.at].slot is None
        is_end = step.matters and (step.error is not None or (step.verb == "complete" and self.job.is_scheduled_again))
        if is_end or is_refused:
            self.record_end()

    def record_end(self) -> None:
        """Record once that this enqueueing has ended: the ends of a job that is scheduled again are counted."""
        if not self._has_recorded_end:
            patiently(self.job.record_end, self.patience)
            self._has_recorded_end = True

    def comes_again(self, error: BaseException) -> tuple[bool, float] | None:
        if self.job.should_retry:
            return True, self.job.get_retry_interval()
        with suppress(RedisError):
            self.record_end()
        return False, 0.0

    def run(self, works: Sequence[Work]) -> fx.Ended:
        if "clock" in vars(self):  # else it was never stopped
            self.clock.start()
        if self._has_spent_time and not self.is_sync:
            return fx.Ended("not_begun")
        self._has_run = True
        works[-1].patience = self.patience  # a body that has run must not run again because the store is unavailable
        try:
            value = run_under(works, self.body)
        except BaseException as error:  # RQ treats any of them as the end of the job
            return self._read(works, error)
        if isinstance(value, Retry):
            return self._wants_retry(value)
        is_unasked = self.job.result_ttl == 0 and self.guarded is not None and self.guarded.policy.on_done == "rerun"
        if self.guarded is None or is_unasked:
            return fx.Ended("returned", value=value)  # nothing will read the outcome
        outcomes, lease = self.guards[-1].outcomes, works[-1].lease
        return fx.Ended("returned", value=value, outcome=self.guards[-1].encoded(outcomes.encode, value, lease))

    def _read(self, works: Sequence[Work], error: BaseException) -> fx.Ended:
        ended = ended_by(works, error, failures=BaseException)
        if ended.kind == "lost":
            works[-1].patience = 0.0  # if the store is unavailable, the next delivery asks
            ended.comes_again = self._has_job()
        elif ended.kind == "failed" and self.job.should_retry:
            return fx.Ended("retry", error=error, delay=self.job.get_retry_interval())
        return ended

    def _wants_retry(self, retry: Retry) -> fx.Ended:
        count = self.job.number_of_retries or 0
        self._retry = retry
        if count and count >= retry.max:
            words = f"it returned Retry more than {retry.max} times"
            return fx.Ended("failed", error=EarlierFailureError(self.key, self.job.id, words))
        return fx.Ended("retry", value=retry, delay=Retry.get_interval(count, retry.intervals))

    # -- last effects ----------------------------------------------------------------------------------------------

    def returned(self, effect: fx.Return) -> Any:
        self.job.envelope = self.machine.envelope
        return effect.value

    def fail(self, effect: fx.Raise) -> Any:
        self.forget_waiting()
        if self._retry is not None and effect.ended_as is not None:
            return self._retry  # RQ sees itself that no retry is left
        raise effect.error

    def go_on(self, effect: fx.GoOn) -> Any:
        self.forget_waiting()
        if effect.ended.error is not None:
            raise effect.ended.error
        return effect.ended.value

    def replay(self, done: Completed) -> Any:
        self.job.envelope = self.machine.envelope
        return replay(self, done)

    def drop(self, effect: fx.Drop) -> Any:
        self.job.envelope = self.machine.envelope
        if effect.why == COPY_RUNS or self.machine.ended is not None:
            return self._lost()
        done = effect.done
        if done is None and effect.holder is None:
            return Deferral()  # RQ does not have the job any more, so this changes nothing
        if done is None or (done.how == "skipped" and self.slot is not None):
            return None  # a scheduled job that was skipped
        return replay(self, done)

    def defer(self, envelope: Envelope, reason: fx.Reason, within: float) -> Any:
        self.job.envelope = self.machine.envelope
        if reason == "store_refuses":
            self.clock.stop()
            time.sleep(OTHER_STORE)  # it comes again at once, and the store says no at once
        return self._lost() if reason in ("lost", "replaced") else self._defer(envelope, fx.WHY[reason])

    def _defer(self, envelope: Envelope, why: str) -> Deferral:
        self.job.envelope = envelope
        _logger.info("deferred: %s %s", self.name, why)
        self.clock.stop()
        patiently(self.job.connection.ping, self.patience)  # RQ writes the deferral there, and tries only once
        return Deferral()

    def _lost(self) -> Any:
        """This run was superseded. It must not write to a job that another worker has."""
        if self._is_left_to_us():
            return self._defer(self.machine.envelope, fx.WHY["lost"])
        if self.has_our_worker:
            raise NothingToReport(f"{self.key}: this run lost its lease")
        raise LeaseLostError(self.key, self._token())

    def _token(self) -> int:
        ended = self.machine.ended
        return int(getattr(ended.error if ended is not None else None, "token", 0))

    def _is_left_to_us(self) -> bool:
        """Whether only this worker can end the job: another job took the key, or a person released it."""
        if not self._has_job():
            return False
        try:
            entry = self.guards[-1].store.get(self.machine.entry(-1))
        except StoreError:
            return True  # RQ has not given it to another worker, and the next delivery asks
        is_held = entry is not None and entry.state in ("queued", "running") and entry.remaining > 0
        if not is_held or entry is None:
            return True
        is_own = job_id_of(entry.owner) == self.job.id or self.claims.is_this_job(entry.owner)
        return not is_own or entry.state == "queued"

    def forget_waiting(self) -> None:
        """Reset what the job waited for: if RQ runs it again, it starts fresh."""
        self.job.envelope = envelope = self.machine.envelope
        if envelope.join or envelope.since:
            self.job.envelope = envelope.as_new()
            patiently(self.job.save_envelope, self.patience)

    def run_without_store(self) -> Any:
        self.job.envelope = self.machine.envelope
        self._has_run = True
        self.clock.start()
        return super().run_without_store()


def to_its_end(body: Callable[[], Any]) -> Any:
    value = body()
    # As RQ runs a coroutine, but here, while the lease is renewed.
    if not inspect.iscoroutine(value):
        return value
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(value)
    finally:
        loop.close()
