"""Workers in haste: RQ's own give an execution a minute or more before it counts as abandoned."""

from __future__ import annotations

import os
import signal
from typing import Any

from rq import Worker

from taskguard.rq import GuardedWorkerMixin
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
