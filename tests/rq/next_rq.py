"""Makes the installed RQ behave as its main branch does where that differs: imported before anything of ours.

There the current job is a context variable, a worker may have several executions, and its methods are given the one
that they are about. Only RQ's own code may set what `worker.execution` is.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import rq
import rq.executions
import rq.job
import rq.worker.base
import rq.worker.worker_classes
from rq.worker import BaseWorker, SimpleWorker

_RQ = str(Path(rq.__file__).parent)


def _is_called_by_rq() -> bool:
    return sys._getframe(2).f_code.co_filename.startswith(_RQ)


def _replace_stack_of_jobs() -> None:
    del rq.job._job_stack
    current: ContextVar[Any] = ContextVar("current_job", default=None)
    program = """
def perform(self):
    self.connection.persist(self.key)
    token = _current.set(self)
    try:
        self._result = self._execute()
    finally:
        _current.reset(token)
    return self._result
"""
    made: dict[str, Any] = {"_current": current}
    exec(compile(program, rq.job.__file__, "exec"), made)  # as if it stood there
    rq.job.Job.perform = made["perform"]
    rq.get_current_job = rq.job.get_current_job = lambda connection=None, job_class=None: current.get()


def _execution(worker: Any) -> Any:
    return next(iter(vars(worker).get("executions", {}).values()), None)


def _set_execution(worker: Any, execution: Any) -> None:
    if not _is_called_by_rq():
        raise AttributeError("property 'execution' of 'BaseWorker' object has no setter")
    worker.executions = {} if execution is None else {execution.id: execution}


def _cleanup_execution(worker: Any, job: Any, pipeline: Any, execution: Any = None) -> None:
    if execution is None:
        assert _is_called_by_rq(), "cleanup_execution() missing 1 required positional argument: 'execution'"
        execution = worker.execution
    worker.set_current_job_id(None, pipeline=pipeline)
    if execution is not None:
        execution.delete(job=job, pipeline=pipeline)
        worker.executions.pop(execution.id, None)


def _hand_executions_on() -> None:
    perform_job, fail, horse = BaseWorker.perform_job, BaseWorker.handle_job_failure, BaseWorker.main_work_horse

    def perform(self: Any, job: Any, queue: Any, execution: Any) -> bool:
        assert execution.job_id == job.id
        self.handle_job_failure = partial(type(self).handle_job_failure, self, execution=execution)
        try:
            return perform_job(self, job, queue)
        finally:
            del self.handle_job_failure

    def handle_job_failure(self: Any, *args: Any, execution: Any = None, **kwargs: Any) -> None:
        fail(self, *args, **kwargs)

    def main_work_horse(self: Any, job: Any, queue: Any) -> None:
        self.perform_job = partial(type(self).perform_job, self, execution=self.execution)
        horse(self, job, queue)

    def execute_job(self: Any, job: Any, queue: Any) -> None:
        self.perform_job(job, queue, self.prepare_execution(job))
        self.set_state("idle")

    BaseWorker.perform_job = perform
    BaseWorker.handle_job_failure = handle_job_failure
    BaseWorker.main_work_horse = main_work_horse
    SimpleWorker.execute_job = execute_job
    BaseWorker.execution = property(_execution, _set_execution)
    BaseWorker.cleanup_execution = _cleanup_execution


_replace_stack_of_jobs()
_hand_executions_on()
