"""An RQ job with the guard's envelope, in its own fields of the job's hash: a body that replaces `meta` keeps them.

In every worker a guarded job becomes a `GuardedJob` before its body starts, so that what RQ writes through the job's
methods is right for a guarded job too.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any

import rq.job
from rq.job import Job, Retry
from rq.utils import import_attribute, utcformat

from taskguard.engine.envelope import Envelope
from taskguard.rq.guarding import JobGuard, guard_for
from taskguard.rq.internals import JOBS, job_stack, require_names
from taskguard.rq.job_metadata import read, written

if TYPE_CHECKING:
    from rq import Queue

require_names(JOBS)

ENVELOPE_FIELD = "taskguard"
"""The field that holds the note."""
ENDED = "taskguard_ended"
"""The field that names the enqueueing whose run has ended (see `owner.py`)."""
ENDS = "taskguard_ends"
"""The field that counts the ended runs of that enqueueing; if absent, one has ended."""


class Deferral(Retry):
    """What a body returns to RQ to defer its job: RQ enqueues it again at once, at the end of the queue."""

    def __init__(self) -> None:
        super().__init__(max=sys.maxsize)


class GuardedJob(Job):
    envelope = Envelope()
    is_guarded = False
    """A guarded worker reads every job as a `GuardedJob`; unless this is set, it behaves as RQ's own."""
    is_scheduled_again = False
    _enqueueing = ""
    _is_prepared = False
    queue_class: Any = None
    """The class of the worker's queues, which may guard functions by name."""

    def restore(self, raw_data: Any) -> Any:
        super().restore(raw_data)
        if not self.is_guarded:  # else it is running, and its body refreshes it
            self.read_envelope(raw_data.get(ENVELOPE_FIELD.encode()))

    def read_envelope(self, envelope: bytes | None) -> None:
        found = read(envelope)
        self.envelope = found if found.made == self.made else Envelope()

    def take_in_hand(self) -> GuardedJob:
        """From here on this delivery uses what is known now, whatever the body does to the job."""
        self.is_guarded = True
        self.is_scheduled_again = is_scheduled_again(self)
        self._enqueueing = ""
        self._enqueueing = self.enqueueing
        self.envelope = self.envelope._replace(made=self.made, run=self.run_name)
        return self

    def to_dict(self, include_meta: bool = True, include_result: bool = True) -> dict[str, Any]:
        mapping = super().to_dict(include_meta=include_meta, include_result=include_result)
        if include_meta and self.envelope != Envelope():
            mapping[ENVELOPE_FIELD] = written(self.envelope)
        if not include_meta and self.is_guarded:
            # RQ records the end of a run. Meanwhile the same id may have been enqueued again, as rq-scheduler does.
            mapping.pop("enqueued_at", None)
        return mapping

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.id == other.id  # RQ's own requires the same class

    __hash__ = Job.__hash__

    def prepare_for_execution(self, worker_name: str, pipeline: Any) -> None:
        super().prepare_for_execution(worker_name, pipeline)
        if job_stack is None or worker_name == "sync":  # a queue that runs at once drops this pipeline
            return
        if _is_rqs_own(super().perform):
            pipeline.persist(self.key)
            self._is_prepared = True

    def perform(self) -> Any:
        if not self._is_prepared:
            return super().perform()
        # As RQ does it, but with one question less: that it does not expire while it runs was written with the rest.
        job_stack.push(self)
        try:
            self._result = self._execute()
        finally:
            job_stack.pop()
        return self._result

    def guard_at(self, queue_class: Any) -> JobGuard | None:
        """What guards its function in a worker with queues of that class, or by the class of its caller's queue."""
        found = guard_for(self.func, queue_class)
        if found is None and self.envelope.queue_class:
            found = guard_for(self.func, _imported(self.envelope.queue_class))
        return found

    def _handle_retry_result(self, queue: Queue, pipeline: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(self._result, Deferral):
            self.defer(queue, pipeline)
        else:
            super()._handle_retry_result(queue, pipeline, *args, **kwargs)

    def defer(self, queue: Queue, pipeline: Any) -> None:
        """Enqueue it again as it is; write only what that changes.

        A job that was cancelled, deleted or ended while it waited is not enqueued.
        """
        again = int(self.is_scheduled_again)
        pipeline.eval(_DEFER, 2, self.key, queue.key, self.id, written(self.envelope), self.ttl or 0, again)

    def save_envelope(self) -> None:
        self.connection.eval(_SET, 1, self.key, ENVELOPE_FIELD, written(self.envelope))

    def record_end(self, *, for_good: bool = False) -> None:
        """Record that this enqueueing of the job has ended; *for_good*: RQ must not retry it either.

        Written before the store: a second copy that finds the end there checks here whether it is its own.
        """
        counted = ENDS if self.is_scheduled_again else ""
        self.connection.eval(_RECORD_END, 1, self.key, ENDED, self.enqueueing, int(for_good), counted)
        if for_good:
            self.retries_left = 0

    @property
    def enqueueing(self) -> str:
        """When it was enqueued, in µs. A deferred job keeps its enqueueing."""
        moment: datetime | None = self.enqueued_at
        return self._enqueueing or ("0" if moment is None else str(round(moment.timestamp() * 1_000_000)))

    @property
    def made(self) -> str:
        """When it was created, as in its hash."""
        return "".join(filter(str.isdigit, utcformat(self.created_at)))

    @property
    def run_name(self) -> str:
        """Distinguishes jobs that were given the same id, also by queues that write no envelope."""
        return self.envelope.run if self.envelope.made else self.made


def _imported(path: str) -> Any:
    """The class with that path; None if it cannot be imported here."""
    try:
        return import_attribute(path)
    except (ImportError, AttributeError, ValueError):
        return None


def _is_rqs_own(method: Any) -> bool:
    """Whether the method is RQ's own: a project's job class may override it, and tracers wrap it."""
    function = getattr(method, "__func__", None)
    return type(function) is FunctionType and function.__code__.co_filename == rq.job.__file__


def is_scheduled_again(job: Job) -> bool:
    """Whether rq-scheduler enqueues this id repeatedly."""
    meta = job.meta or {}
    return "interval" in meta or "cron_string" in meta


def guarded_job_class(base: Any) -> Any:
    return base if issubclass(base, GuardedJob) else _made_of(base)


@cache
def _made_of(base: Any) -> Any:
    return GuardedJob if base is Job else type(f"Guarded{base.__name__}", (GuardedJob, base), {})


def with_envelope(job: Any, envelope: Envelope) -> GuardedJob:
    """The same object, as a `GuardedJob` with that envelope."""
    job.__class__ = guarded_job_class(type(job))
    job.envelope = envelope._replace(made=job.made)
    return job  # type: ignore[no-any-return]


def as_guarded_job(job: Job) -> GuardedJob:
    """The same object, as a `GuardedJob` with its envelope from Redis."""
    if isinstance(job, GuardedJob):
        return job
    found: Any = job.connection.hget(job.key, ENVELOPE_FIELD)
    made = with_envelope(job, Envelope())
    made.read_envelope(found)
    return made


# -- until RQ has made the job -----------------------------------------------------------------------------------------

_CARRIED = "taskguard:note"


def carried(meta: Mapping[str, Any] | None, envelope: Envelope) -> dict[str, Any]:
    """The meta of a call with its envelope: RQ passes it on to the job that it makes."""
    return {**(meta or {}), _CARRIED: envelope}


def envelope_carried_by(meta: Mapping[str, Any] | None) -> Envelope:
    envelope = (meta or {}).get(_CARRIED)
    return envelope if isinstance(envelope, Envelope) else Envelope()


def put_down(job: Job) -> Job:
    """The job that RQ made, with the envelope from its meta."""
    envelope = (job.meta or {}).pop(_CARRIED, None)
    return job if envelope is None else with_envelope(job, envelope)


# -- scripts -----------------------------------------------------------------------------------------------------------
# Setting a field of a job that was deleted meanwhile would leave a hash that nothing removes. So each script first
# checks that the job's data exists.

_SET = """
-- KEYS: the job. ARGV: field, value.
if redis.call('HEXISTS', KEYS[1], 'data') == 1 then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
"""

_RECORD_END = """
-- KEYS: the job. ARGV: field, the enqueueing that has ended, 1 to remove its retries, field of the count if any.
if redis.call('HEXISTS', KEYS[1], 'data') == 0 then return end
-- A parent that settles late for its dead horse must not overwrite the end of a later enqueueing.
local known = redis.call('HGET', KEYS[1], ARGV[1]) or '0'
if tonumber(ARGV[2]) > tonumber(known) then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
  redis.call('HDEL', KEYS[1], ARGV[4])
elseif ARGV[2] == known and ARGV[4] ~= '' then
  redis.call('HSET', KEYS[1], ARGV[4], (redis.call('HGET', KEYS[1], ARGV[4]) or 1) + 1)
end
if ARGV[3] == '1' and redis.call('HEXISTS', KEYS[1], 'retries_left') == 1 then
  redis.call('HSET', KEYS[1], 'retries_left', 0)
end
"""

_DEFER = """
-- KEYS: the job, its queue. ARGV: its id, its envelope, its ttl, 1 if a scheduler enqueues this id repeatedly.
local status = redis.call('HGET', KEYS[1], 'status')
if redis.call('HEXISTS', KEYS[1], 'data') == 0 then
  redis.call('DEL', KEYS[1])  -- what RQ's heartbeat left of a deleted job
  return 0
end
local ended = status == 'finished' or status == 'failed' or status == 'stopped'
if status == 'canceled' or (ended and ARGV[4] == '0') then return 0 end  -- else it is the next occurrence, and due
redis.call('HSET', KEYS[1], 'status', 'queued', 'taskguard', ARGV[2])
redis.call('RPUSH', KEYS[2], ARGV[1])
if tonumber(ARGV[3]) > 0 then redis.call('EXPIRE', KEYS[1], ARGV[3]) end
return 1
"""
