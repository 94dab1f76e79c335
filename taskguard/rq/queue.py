"""A queue that claims before it enqueues. It enqueues unguarded functions like any other queue."""

from __future__ import annotations

import copy
import datetime as dates
import weakref
from collections.abc import Iterable, Mapping
from functools import cache
from inspect import ismethod
from typing import Any
from uuid import uuid4

from rq import Queue
from rq.job import Job, JobStatus

from taskguard.engine.envelope import Envelope
from taskguard.errors import ConfigurationError
from taskguard.rq.admission import Admission
from taskguard.rq.guarded_job import GuardedJob, carried, envelope_carried_by, put_down, with_envelope
from taskguard.rq.guarding import guard_for, guard_of
from taskguard.rq.internals import QUEUES, require_names
from taskguard.rq.job_metadata import IDEMPOTENCY_KEY
from taskguard.rq.performing import performed
from taskguard.runtime.switch import is_off

require_names(QUEUES)

_pending: weakref.WeakKeyDictionary[Any, tuple[Any, dict[str, Job | None]]] = weakref.WeakKeyDictionary()
"""Claimed jobs whose caller has not executed its pipeline: RQ does not know them yet."""


def _pending_in(pipeline: Any) -> dict[str, Job | None]:
    if pipeline is None:
        return {}
    # An executed or reset pipeline starts a new list of commands: RQ has the old ones, or will never get them.
    commands = getattr(pipeline, "command_stack", None)
    known, waiting = _pending.get(pipeline, (None, {}))
    if known is not commands or not commands:
        waiting = {}
    _pending[pipeline] = commands, waiting
    return waiting


class GuardedQueue(Queue):
    """Drop-in for `rq.Queue`."""

    taskguard_tasks: Mapping[str, Mapping[str, Any]] = {}
    """Options by pattern of function names: guards functions without changing their code. Set it on your own class and
    give that class to the workers too: `rq worker --queue-class … --worker-class taskguard.rq.GuardedWorker`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        if "commit_mode" in options and not _knows_commit_modes(type(self)):
            # RQ's own class accepts and ignores any option: jobs would outlive a transaction that rolls back.
            raise ConfigurationError(
                f"{type(self).__name__} does not support commit_mode; for django-rq write "
                'QUEUE_CLASS = "taskguard.rq.django.GuardedDjangoQueue", or derive your class from that one'
            )
        super().__init__(*args, **options)

    def create_job(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        _check(func)
        job = put_down(super().create_job(func, *args, **kwargs))
        return job if self.is_async else performed(job)

    # These methods enqueue new calls. A retry, a repetition and a dependent that may start go through `_enqueue_job`,
    # and already have their entry.

    def enqueue(self, f: Any, *args: Any, **kwargs: Any) -> Any:
        return super().enqueue(f, *args, **self._with_idempotency_key(f, kwargs))

    def enqueue_at(self, datetime: dates.datetime, f: Any, *args: Any, **kwargs: Any) -> Any:
        return super().enqueue_at(datetime, f, *args, **self._with_idempotency_key(f, kwargs))

    def enqueue_job(  # type: ignore[override]
        self, job: Job, pipeline: Any = None, at_front: bool = False, **options: Any
    ) -> Any:
        is_refused = options.get("unique") and (_has_no_id(job) or job._dependency_ids)
        admission = None if is_refused or _is_known(job) else self._admission(job, pipeline)
        if admission is None:
            return super().enqueue_job(job, pipeline=pipeline, at_front=at_front, **options)
        answer = admission.ask()
        if answer is not None:
            return answer
        with_envelope(job, admission.envelope)
        try:
            return admission.enqueued(super().enqueue_job(job, pipeline=pipeline, at_front=at_front, **options))
        except BaseException:
            admission.refused()
            raise

    def schedule_job(  # type: ignore[override]
        self, job: Job, datetime: dates.datetime, pipeline: Any = None, **options: Any
    ) -> Any:
        is_refused = options.get("unique") and _has_no_id(job)
        admission = None if is_refused else self._admission(job, pipeline, delay=_seconds_until(datetime))
        if admission is None:
            return super().schedule_job(job, datetime, pipeline=pipeline, **options)
        answer = admission.ask()
        if answer is not None:
            return answer
        with_envelope(job, admission.envelope)
        try:
            return admission.enqueued(super().schedule_job(job, datetime, pipeline=pipeline, **options))
        except BaseException:
            admission.refused()
            raise

    def enqueue_many(  # type: ignore[override]
        self, job_datas: Iterable[Any], pipeline: Any = None, **options: Any
    ) -> Any:
        datas = list(job_datas)
        if is_off() or not any(guard_for(data.func, self) for data in datas):
            return super().enqueue_many(datas, pipeline=pipeline, **options)
        waiting = _pending_in(pipeline)
        admissions: dict[str, Admission] = {}
        answers: list[Any] = []
        accepted = []
        try:
            for data in datas:
                data = self._named(data, waiting, admissions)
                answer = admissions[data.job_id].ask() if data.job_id in admissions else None
                if answer is None:
                    accepted.append(self._with_envelope(data, admissions.get(data.job_id)))
                answers.append(data.job_id if answer is None else answer)
            enqueued = {job.id: job for job in super().enqueue_many(accepted, pipeline=pipeline, **options)}
        except BaseException:
            for admission in admissions.values():
                admission.refused()
            raise
        for job_id, job in enqueued.items():
            if job_id in admissions:
                admissions[job_id].enqueued(job)
        return [self._answer(answer, enqueued) for answer in answers]

    def _with_idempotency_key(self, function: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Move the caller's own key of a guarded function into the meta, until RQ has made the job."""
        if IDEMPOTENCY_KEY not in kwargs:
            return kwargs
        found = guard_for(function, self)
        if found is None or IDEMPOTENCY_KEY in found.keys.signature.parameters:
            return kwargs
        rest = {name: value for name, value in kwargs.items() if name != IDEMPOTENCY_KEY}
        return {**rest, "meta": carried(kwargs.get("meta"), Envelope(idempotency_key=kwargs[IDEMPOTENCY_KEY]))}

    # -- the parts of them -----------------------------------------------------------------------------------------

    def _admission(self, job: Job, pipeline: Any, delay: float = 0.0) -> Admission | None:
        if is_off():
            return None
        is_named = job._id is not None
        envelope = job.envelope if isinstance(job, GuardedJob) else Envelope()  # another job class has no envelope
        if job.enqueued_at is not None or envelope.key:
            return None  # it was enqueued or scheduled before, so it is not a new call
        function = job.func_name if job.instance is None else getattr(job.instance, str(job.func_name), None)
        guarded = guard_for(function, self)
        if guarded is None:
            return None
        return Admission(
            self,
            guarded,
            job_id=job.id,
            is_named=is_named,
            args=tuple(job.args) if job.instance is None else (job.instance, *job.args),
            kwargs=job.kwargs,
            idempotency_key=envelope.idempotency_key,
            repeats=job.repeats_left,
            ttl=job.ttl,
            delay=delay,
            pending=_pending_in(pipeline) if pipeline is not None else {},
        )

    def _named(self, data: Any, pending: dict[str, Job | None], admissions: dict[str, Admission]) -> Any:
        """The call with an id. If its function is guarded, add its admission."""
        is_named = data.job_id is not None
        data = data._replace(job_id=data.job_id or str(uuid4()))
        guarded = guard_for(data.func, self)
        if guarded is None:
            return data
        _check(data.func)
        args = tuple(data.args or ())
        admissions[data.job_id] = Admission(
            self,
            guarded,
            job_id=data.job_id,
            is_named=is_named,
            args=(data.func.__self__, *args) if ismethod(data.func) else args,
            kwargs=data.kwargs or {},
            idempotency_key=envelope_carried_by(data.meta).idempotency_key,
            repeats=data.repeat.times if data.repeat else None,
            ttl=data.ttl,
            delay=0.0,
            pending=pending,
        )
        return data

    def _with_envelope(self, data: Any, admission: Admission | None) -> Any:
        return data if admission is None else data._replace(meta=carried(data.meta, admission.envelope))

    def _answer(self, answer: Any, enqueued: dict[str, Job]) -> Any:
        """The job for one call of `enqueue_many`. A duplicate of another call in it gets that call's job."""
        if isinstance(answer, str):
            return enqueued[answer]
        if answer.id in enqueued and answer is not enqueued[answer.id]:
            about = answer.taskguard
            answer = copy.copy(enqueued[answer.id])
            answer.taskguard = about
        return answer


@cache
def _guarded_class(base: Any) -> type[Queue]:
    return base if issubclass(base, GuardedQueue) else type(f"Guarded{base.__name__}", (GuardedQueue, base), {})


def claiming(queue: Queue) -> Queue:
    """The same queue, but one that claims before it enqueues."""
    if isinstance(queue, GuardedQueue):
        return queue
    base: Any = type(queue)
    guarded = copy.copy(queue)
    guarded.__class__ = _guarded_class(base)
    return guarded


def _knows_commit_modes(kind: type) -> bool:
    return any(base.__module__.startswith("django_rq.") for base in kind.__mro__)


def _is_known(job: Job) -> bool:
    """Whether it already has its queue entry: it was scheduled, or depended on others, and is enqueued now."""
    return job.get_status(refresh=False) in (JobStatus.SCHEDULED, JobStatus.DEFERRED)


def _has_no_id(job: Job) -> bool:
    """Whether the caller gave no id. Reading `job.id` creates one, and then RQ accepts a unique job without it."""
    return job._id is None


def _check(function: Any) -> None:
    """Raise unless a worker, which imports the function by name, would find the guarded one."""
    guarded = guard_of(function)
    if guarded is not None and guard_of(guarded.name) is not guarded:
        raise ConfigurationError(
            f"a worker that imports {guarded.name} would not find the guarded function; "
            "put the decorator where the function is defined, in a module"
        )


def _seconds_until(datetime: dates.datetime) -> float:
    aware = datetime if datetime.tzinfo else datetime.astimezone()
    return max(0.0, (aware - dates.datetime.now(dates.timezone.utc)).total_seconds())
