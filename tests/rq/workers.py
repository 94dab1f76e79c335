"""Workers in haste: RQ's own give an execution a minute or more before it counts as abandoned."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from rq import Worker
from rq.timeouts import TimerDeathPenalty

from taskguard import TooManyStartsError
from taskguard.rq import GuardedSimpleWorker, GuardedWorkerMixin
from taskguard.stores.redis import RedisStore
from tests.rq import bodies

SOON = 2


class HastyWorker(Worker):
    job_monitoring_interval = 1

    def get_heartbeat_ttl(self, job: Any) -> int:
        return SOON


class HastyGuardedWorker(GuardedWorkerMixin, HastyWorker):
    pass


class DiesAfterTheBody(HastyWorker):
    """Once: between the end of the body and what RQ writes about it."""

    def handle_job_success(self, job: Any, *args: Any, **kwargs: Any) -> None:
        if not bodies.noted("accident", job_id=job.id):
            bodies.note("accident", job_id=job.id)
            os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        super().handle_job_success(job, *args, **kwargs)


class DiesBeforeTheBody(HastyWorker):
    """Once: with a job in hand that it has not started."""

    def execute_job(self, job: Any, queue: Any) -> None:
        if not bodies.noted("accident", job_id=job.id):
            bodies.note("accident", job_id=job.id)
            os.kill(os.getpid(), signal.SIGKILL)
        super().execute_job(job, queue)


class TimerWorker(GuardedSimpleWorker):
    """Ends jobs by a thread and not by an alarm, as where there are no signals."""

    death_penalty_class = TimerDeathPenalty


class DiesBeforeItFails(HastyGuardedWorker):
    """When the store knows that a job was started too often, and RQ does not."""

    def handle_execution_ended(self, job: Any, *args: Any) -> None:
        if isinstance(sys.exc_info()[1], TooManyStartsError):
            os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        super().handle_execution_ended(job, *args)


class DoomedWorker(GuardedWorkerMixin, Worker):
    """Its horse dies once, at the step that the environment names: before or after a verb of the store."""

    def perform_job(self, job: Any, queue: Any) -> bool:
        when, _, verb = os.environ["TASKGUARD_TEST_DOOM"].partition(" ")
        original = getattr(RedisStore, verb)

        def doomed(store: Any, *args: Any, **options: Any) -> Any:
            if when == "before":
                _die_once()
            answer = original(store, *args, **options)
            if when == "after":
                _die_once()
            return answer

        setattr(RedisStore, verb, doomed)
        return super().perform_job(job, queue)


def _die_once() -> None:
    if not bodies.noted("doom"):
        bodies.note("doom")
        os.kill(os.getpid(), signal.SIGKILL)
