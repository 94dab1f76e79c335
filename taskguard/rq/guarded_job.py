"""A job of RQ with the guard's note, in fields of their own of the job's hash: no body can remove them with its meta.

Whichever worker has it in hand, a guarded job becomes one of these before its body starts: what RQ writes through its
methods is then right for a guarded job too.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any

import rq.job
from rq.job import Job, Retry, _job_stack
from rq.utils import import_attribute, utcformat

from taskguard.engine.envelope import Envelope
from taskguard.rq.guarding import JobGuard, guard_for
from taskguard.rq.job_metadata import read, written

if TYPE_CHECKING:
    from rq import Queue

ENVELOPE_FIELD = "taskguard"
"""The field that holds the note."""
ENDED = "taskguard_ended"
"""The field that names the enqueueing whose run has ended (see `owner.py`)."""
ENDS = "taskguard_ends"
"""The field that counts the runs that have ended of that one enqueueing; without it, one has."""


class Deferral(Retry):
    """What a body returns to RQ so that its job is enqueued again, at once and at the end of the queue."""

    def __init__(self) -> None:
        super().__init__(max=sys.maxsize)


class GuardedJob(Job):
    envelope = Envelope()
    is_guarded = False
    """A guarded worker reads every job as one of these; it is as RQ made it unless its function is guarded."""
    is_scheduled_again = False
    _enqueueing = ""
    _is_prepared = False
    queue_class: Any = None
    """That of the worker, which may guard functions by their names."""

    def restore(self, raw_data: Any) -> Any:
        super().restore(raw_data)
        if not self.is_guarded:  # else it is in hand, and its body wants to know what is new
            self.read_envelope(raw_data.get(ENVELOPE_FIELD.encode()))

    def read_envelope(self, envelope: bytes | None) -> None:
        found = read(envelope)
        self.envelope = found if found.made == self.made else Envelope()

    def take_in_hand(self) -> GuardedJob:
        """In hand: from here on this delivery goes by what is known now, whatever a body does to the job."""
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
            # RQ writes down the end of a run. Somebody may have enqueued the same id meanwhile, as rq-scheduler does.
            mapping.pop("enqueued_at", None)
        return mapping

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.id == other.id  # RQ's own wants the very same class

    __hash__ = Job.__hash__

    def prepare_for_execution(self, worker_name: str, pipeline: Any) -> None:
        super().prepare_for_execution(worker_name, pipeline)
        if worker_name != "sync" and _is_rqs_own(super().perform):  # a queue that runs at once drops this pipeline
            pipeline.persist(self.key)
            self._is_prepared = True

    def perform(self) -> Any:
        if not self._is_prepared:
            return super().perform()
        # As RQ does it, but with one question less: that it does not expire while it runs was written with the rest.
        _job_stack.push(self)  # type: ignore[no-untyped-call]
        try:
            self._result = self._execute()
        finally:
            _job_stack.pop()  # type: ignore[no-untyped-call]
        return self._result

    def guard_at(self, queue_class: Any) -> JobGuard | None:
        """What guards its function, at a worker with queues of that class; its caller's may be of another."""
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
        """Into its queue again, as it is: nothing is written but what changes by that.

        A job that was cancelled, deleted or ended while it waited stays so.
        """
        again = int(self.is_scheduled_again)
        pipeline.eval(_DEFER, 2, self.key, queue.key, self.id, written(self.envelope), self.ttl or 0, again)

    def save_envelope(self) -> None:
        self.connection.eval(_SET, 1, self.key, ENVELOPE_FIELD, written(self.envelope))

    def record_end(self, *, for_good: bool = False) -> None:
        """This enqueueing of the job has come to its end; *for_good*: and RQ shall not start it again by itself.

        Written before the store is told: a second copy that finds the end there looks here whether it is its own.
        """
        counted = ENDS if self.is_scheduled_again else ""
        self.connection.eval(_RECORD_END, 1, self.key, ENDED, self.enqueueing, int(for_good), counted)
        if for_good:
            self.retries_left = 0

    @property
    def enqueueing(self) -> str:
        """When it was enqueued, in µs; a job that is put back is of the same enqueueing as before."""
        moment: datetime | None = self.enqueued_at
        return self._enqueueing or ("0" if moment is None else str(round(moment.timestamp() * 1_000_000)))

    @property
    def made(self) -> str:
        """When it was made, as its hash has it."""
        return "".join(filter(str.isdigit, utcformat(self.created_at)))

    @property
    def run_name(self) -> str:
        """Tells apart the jobs that were given one id, also by queues that write no note."""
        return self.envelope.run if self.envelope.made else self.made


def _imported(path: str) -> Any:
    """The class of that name; None if there is none here."""
    try:
        return import_attribute(path)
    except (ImportError, AttributeError, ValueError):
        return None


def _is_rqs_own(method: Any) -> bool:
    """Whether it is as RQ wrote it: a job class of the project's may have another, and tracers wrap it."""
    function = getattr(method, "__func__", None)
    return type(function) is FunctionType and function.__code__.co_filename == rq.job.__file__


def is_scheduled_again(job: Job) -> bool:
    """Whether rq-scheduler enqueues this id time after time."""
    meta = job.meta or {}
    return "interval" in meta or "cron_string" in meta


def guarded_job_class(base: Any) -> Any:
    return base if issubclass(base, GuardedJob) else _made_of(base)


@cache
def _made_of(base: Any) -> Any:
    return GuardedJob if base is Job else type(f"Guarded{base.__name__}", (GuardedJob, base), {})


def with_envelope(job: Any, envelope: Envelope) -> GuardedJob:
    """The very same object, with that note."""
    job.__class__ = guarded_job_class(type(job))
    job.envelope = envelope._replace(made=job.made)
    return job  # type: ignore[no-any-return]


def as_guarded_job(job: Job) -> GuardedJob:
    """The very same object, with the note that it has in Redis."""
    if isinstance(job, GuardedJob):
        return job
    found: Any = job.connection.hget(job.key, ENVELOPE_FIELD)
    made = with_envelope(job, Envelope())
    made.read_envelope(found)
    return made


# -- what travels until the job is made --------------------------------------------------------------------------------

_CARRIED = "taskguard:note"


def carried(meta: Mapping[str, Any] | None, envelope: Envelope) -> dict[str, Any]:
    """The meta of a call, and its note: RQ makes a job of all that it is given."""
    return {**(meta or {}), _CARRIED: envelope}


def envelope_carried_by(meta: Mapping[str, Any] | None) -> Envelope:
    envelope = (meta or {}).get(_CARRIED)
    return envelope if isinstance(envelope, Envelope) else Envelope()


def put_down(job: Job) -> Job:
    """The job that RQ has made, with the note that was carried by its meta."""
    envelope = (job.meta or {}).pop(_CARRIED, None)
    return job if envelope is None else with_envelope(job, envelope)


# -- scripts -----------------------------------------------------------------------------------------------------------
# A field that is set on a job which was deleted meanwhile would leave a hash that nobody removes: so each of these
# looks for the job's data first, in the same step.

_SET = """
-- KEYS: the job. ARGV: field, value.
if redis.call('HEXISTS', KEYS[1], 'data') == 1 then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
"""

_RECORD_END = """
-- KEYS: the job. ARGV: field, the enqueueing that has ended, 1 if no retries are left to it, field of the count if any.
if redis.call('HEXISTS', KEYS[1], 'data') == 0 then return end
-- A parent that settles late for its dead horse does not take back the end of a later enqueueing.
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
-- KEYS: the job, its queue. ARGV: its id, its note, its ttl, 1 if a scheduler enqueues this id time after time.
local status = redis.call('HGET', KEYS[1], 'status')
if redis.call('HEXISTS', KEYS[1], 'data') == 0 then
  redis.call('DEL', KEYS[1])  -- what RQ's heartbeat has left of a deleted one
  return 0
end
local ended = status == 'finished' or status == 'failed' or status == 'stopped'
if status == 'canceled' or (ended and ARGV[4] == '0') then return 0 end  -- else it is the next occurrence, and due
redis.call('HSET', KEYS[1], 'status', 'queued', 'taskguard', ARGV[2])
redis.call('RPUSH', KEYS[2], ARGV[1])
if tonumber(ARGV[3]) > 0 then redis.call('EXPIRE', KEYS[1], ARGV[3]) end
return 1
"""
