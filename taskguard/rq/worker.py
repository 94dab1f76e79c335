"""A worker that settles the jobs of its dead work horses, and keeps a superseded run from writing to its job.

Any worker runs guarded jobs. This one adds what only the horse's parent process can do. If a horse is killed or
stopped, the worker settles the key at once, by the attempt that died; otherwise the key is free only when the lease
expires. A run that lost its lease, or a leftover copy of an ended job, writes nothing to the job. And the worker finds
jobs of dead workers sooner than RQ does: see `abandoned.py`.
"""

from __future__ import annotations

import inspect
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rq import Queue, SimpleWorker, SpawnWorker, Worker
from rq.job import Job, JobStatus
from rq.utils import ensure_job_list, now
from rq.worker import BaseWorker

from taskguard.history import flush_all
from taskguard.rq import singleton_task  # noqa: F401 - so that no work horse must import it
from taskguard.rq.abandoned import EVERY as LOOKS_EVERY
from taskguard.rq.abandoned import find_abandoned
from taskguard.rq.delivery import ATTEMPT  # nor this
from taskguard.rq.guarded_job import Deferral, as_guarded_job, guarded_job_class, is_scheduled_again
from taskguard.rq.guarding import warm
from taskguard.rq.internals import WORKERS, require_names
from taskguard.rq.performing import performed
from taskguard.rq.replay import NothingToReport
from taskguard.rq.settle import defer_if_stuck, settle_for
from taskguard.runtime.health_file import HealthFile
from taskguard.runtime.switch import is_off

require_names(WORKERS)

SETTLE_WITHIN = 60
"""Seconds after which the worker gives up a settlement; then the lease expires."""

_CLEANS_UP_THE_ONE_IT_IS_GIVEN = "execution" in inspect.signature(BaseWorker.cleanup_execution).parameters
"""Else the worker's only one. RQ's next major release tells methods which execution they are about."""

_logger = logging.getLogger("taskguard")


class GuardedWorkerMixin(BaseWorker):
    """In front of any of RQ's worker classes."""

    _is_warm = False
    _looks_at = 0.0
    """When to check next for jobs of dead workers, by the monotonic clock."""
    _performs = False
    """Whether a body runs in this process, or has just ended here."""

    def __init__(self, queues: Any, *args: Any, **kwargs: Any) -> None:
        # `rq worker` passes RQ's own queue class if the user chose none, and worker pools always do. The `queue_class`
        # of this worker's class takes precedence over that.
        own = type(self).queue_class
        if own is not Queue and kwargs.get("queue_class") is Queue:
            kwargs["queue_class"] = own
            queues = [_as(own, queue) for queue in ensure_job_list(queues)]
        super().__init__(queues, *args, **kwargs)
        self._health = HealthFile.of("worker")
        self.job_class = guarded_job_class(self.job_class)  # read with its note: that costs no question of its own

    # -- where the body runs -----------------------------------------------------------------------------------------

    def execute_job(self, job: Job, queue: Queue, *args: Any, **kwargs: Any) -> None:
        if not self._is_warm:
            self._is_warm = True
            warm(self.connection, job.serializer)
        try:
            super().execute_job(job, queue, *args, **kwargs)
        finally:
            self._forget_execution()  # RQ does in the horse only: it would pass for that of a job found stuck

    def _forget_execution(self) -> None:
        several: dict[str, Any] | None = getattr(self, "executions", None)
        if several is None:
            self.execution = None
        else:
            several.clear()

    def perform_job(self, job: Job, queue: Queue, *args: Any, **kwargs: Any) -> bool:
        # The id of the execution is known here and in the parent, and nowhere else: it is the attempt.
        execution = args[0] if args else kwargs.get("execution", self.execution)
        setattr(job, ATTEMPT, execution.id if execution else "")
        performed(as_guarded_job(job)).queue_class = type(queue)
        self._performs = True
        try:
            if not is_off() and _is_leftover(job, queue):
                self._leave_intermediate_queue(job)
                raise NothingToReport(f"it is a leftover copy, the job is {job.get_status(refresh=False).value}")
            return bool(super().perform_job(job, queue, *args, **kwargs))
        except NothingToReport as reason:
            self._end_execution(job, execution, reason)
            return True
        finally:
            self._performs = False

    def _leave_intermediate_queue(self, job: Job) -> None:
        """As RQ does when it starts a job: it would treat a job that stays there as stuck and fail it."""
        if len(self.queues) == 1:
            self.connection.lrem(Queue(job.origin, connection=self.connection).intermediate_queue_key, 1, job.id)

    def handle_execution_ended(self, job: Job, queue: Queue, heartbeat_ttl: int) -> None:
        # RQ calls this first when a body has raised. Raised again from here, the error leaves `perform_job` before RQ
        # writes anything.
        error = sys.exc_info()[1]
        if isinstance(error, NothingToReport):
            raise error
        # By their names: if a callback cannot be imported, RQ fails the job where it calls it.
        if as_guarded_job(job).is_guarded and not job._success_callback_name and not job._failure_callback_name:
            job.ended_at = job.last_heartbeat = now()  # RQ writes both with the end of the job
        else:
            super().handle_execution_ended(job, queue, heartbeat_ttl)

    def handle_job_retry(self, job: Job, queue: Queue, retry: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(retry, Deferral):
            super().handle_job_retry(job, queue, retry, *args, **kwargs)
            return
        with self.connection.pipeline() as pipeline:
            job.defer(queue, pipeline)  # type: ignore[attr-defined] # only a noted one returns this
            self._clean_up(job, kwargs.get("execution"), pipeline)
            pipeline.execute()

    # -- jobs of dead workers ----------------------------------------------------------------------------------------

    @property
    def should_run_maintenance_tasks(self) -> bool:
        if super().should_run_maintenance_tasks:
            return True
        if is_off() or time.monotonic() < self._looks_at:  # RQ reads this before each job
            return False
        self._looks_at = time.monotonic() + LOOKS_EVERY
        return find_abandoned(self.queues, self.name)

    def dequeue_job_and_maintain_ttl(self, timeout: int | None, max_idle_time: int | None = None) -> Any:
        # RQ checks for maintenance when this returns: after seven minutes, if nothing is enqueued.
        timeout = None if timeout is None else min(timeout, LOOKS_EVERY)
        return super().dequeue_job_and_maintain_ttl(timeout, max_idle_time)

    # -- in the process around it ------------------------------------------------------------------------------------

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        if self._health is not None and not self.is_horse:  # first: a Redis that is away does not make it dead
            self._health.write(lambda: {"name": self.name})
        super().heartbeat(timeout, pipeline=pipeline)

    def handle_job_failure(self, job: Job, queue: Queue, *args: Any, **kwargs: Any) -> None:
        if not self._performs and not is_off():
            # Before RQ enqueues it again: the retry would meet its own entry, still running.
            execution = kwargs.get("execution") or self.execution
            attempt = execution.id if execution is not None and execution.job_id == job.id else ""
            is_stopped = self._stopped_job_id == job.id

            if not attempt and defer_if_stuck(job, queue):
                return

            def settle() -> bool:
                return settle_for(job, as_guarded_job(job).guard_at(queue), attempt, is_stopped=is_stopped)

            if _in_a_child(settle):
                gone = "its horse is gone, and another worker has the job"
                self._end_execution(job, execution, gone if attempt else "it has ended, and this is a leftover copy")
                return
        super().handle_job_failure(job, queue, *args, **kwargs)

    def _end_execution(self, job: Job, execution: Any, why: object) -> None:
        """This execution is over, and the job is somebody else's."""
        self.log.info("Worker %s: job %s: nothing to report, %s", self.name, job.id, why)
        with self.connection.pipeline() as pipeline:
            self._clean_up(job, execution, pipeline)
            pipeline.execute()

    def _clean_up(self, job: Job, execution: Any, pipeline: Any) -> None:
        given = {"execution": execution or self.execution} if _CLEANS_UP_THE_ONE_IT_IS_GIVEN else {}
        self.cleanup_execution(job, pipeline=pipeline, **given)


class GuardedWorker(GuardedWorkerMixin, Worker):
    """`rq worker --worker-class taskguard.rq.GuardedWorker`."""


class GuardedSimpleWorker(GuardedWorkerMixin, SimpleWorker):
    """Runs jobs in its own process."""


class GuardedSpawnWorker(GuardedWorkerMixin, SpawnWorker):
    """Starts each horse as a new process with `spawn`."""

    def fork_work_horse(self, job: Job, queue: Queue, *args: Any, **kwargs: Any) -> None:
        # RQ writes the horse's program itself, and names its own classes in it.
        spawn, prelude = os.spawnv, _IN_HORSE + _import_as("rq.Queue", type(queue))

        def spawn_guarded(mode: int, path: str, arguments: list[str]) -> int:
            *start, program = arguments
            return spawn(mode, path, [*start, prelude + program])

        os.spawnv = spawn_guarded  # type: ignore[assignment]
        try:
            super().fork_work_horse(job, queue, *args, **kwargs)
        finally:
            os.spawnv = spawn


def _as(kind: type[Queue], queue: Any) -> Any:
    """The same queue, of that class; a name is returned as it is."""
    if not isinstance(queue, Queue) or isinstance(queue, kind):
        return queue
    return kind(
        queue.name,
        connection=queue.connection,
        job_class=queue.job_class,
        serializer=queue.serializer,
        death_penalty_class=queue.death_penalty_class,
    )


_YES = 17
_IN_HORSE = "import rq, taskguard.rq\nrq.Worker = taskguard.rq.GuardedSpawnWorker\n"


def _import_as(name: str, kind: type) -> str:
    """Lines of code that replace a class of RQ's with the project's."""
    return f"import {kind.__module__}\n{name} = {kind.__module__}.{kind.__qualname__}\n"


def _is_leftover(job: Job, queue: Queue) -> bool:
    """Whether the job was in the queue twice: enqueueing sets its status to queued, and here it has ended.

    A job that rq-scheduler enqueued again before it ended is another occurrence, not a leftover.
    """
    if job.get_status(refresh=False) not in (JobStatus.FINISHED, JobStatus.FAILED) or is_scheduled_again(job):
        return False
    try:
        return as_guarded_job(job).envelope.slot is not None or as_guarded_job(job).guard_at(queue) is not None
    except Exception:
        return False  # the function cannot be imported or read: RQ reports that


def _in_a_child(ask: Callable[[], bool]) -> bool:
    """Run *ask* in a fork: settling imports the job's function, and a worker's parent must not import job code."""
    pid = os.fork()
    if pid == 0:
        answer = False
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(SETTLE_WITHIN)
            answer = ask()
            flush_all()
        except BaseException:
            _logger.warning("could not settle a job; its key is free when the lease expires", exc_info=True)
        finally:
            os._exit(_YES if answer else 0)
    with suppress(ChildProcessError):
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == _YES
    return False
