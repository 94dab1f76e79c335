"""Jobs, workers and timetable of a rolling change, for both releases."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from rq import Worker, get_current_job
from rq.intermediate_queue import IntermediateQueue
from rq.job import Retry
from rq.utils import now

from taskguard import Fence, current_fence
from taskguard.rq import GuardedWorkerMixin, singleton_task
from tests.upgrade import bodies

SOON = 2
OPTIONS: dict[str, Any] = {"lease": 2, "max_starts": 100}


class HastyWorker(GuardedWorkerMixin, Worker):
    """RQ gives an execution a minute or more before it counts as abandoned."""

    job_monitoring_interval = 1

    def get_heartbeat_ttl(self, job: Any) -> int:
        return SOON


def _is_stuck(queue: IntermediateQueue, job_id: str) -> bool:
    # RQ gives a job a minute whose worker died between taking it and starting it.
    seen = queue.get_first_seen(job_id)
    return seen is not None and now() - seen > timedelta(seconds=2 * SOON)


IntermediateQueue.should_be_cleaned_up = _is_stuck  # type: ignore[method-assign]


def _job_id() -> str:
    job = get_current_job()
    assert job is not None
    return job.id


@singleton_task(key="order", on_done="reuse_success", keep_for=900, **OPTIONS)
def pay(order: str, fails: int = 0, *, fence: Fence) -> str:
    """Once for each order, however often it is called."""
    job = get_current_job()
    assert job is not None
    if fails and not job.meta.get("failed"):
        job.meta["failed"] = True
        job.save_meta()
        bodies.work("pay", order, job.id, fence, effect=False)
        raise RuntimeError(bodies.ON_PURPOSE)
    bodies.work("pay", order, job.id, fence)
    return order


@singleton_task(key="page", **OPTIONS)
def refresh(page: str, *, fence: Fence) -> str:
    """Once for each job; a call that comes while one is queued or running is a duplicate."""
    bodies.work("refresh", page, _job_id(), fence)
    return page


@singleton_task(key="page", **OPTIONS)
def returns_retry(page: str, *, fence: Fence) -> Any:
    job = get_current_job()
    assert job is not None
    is_last = bool(job.meta.get("retried"))
    job.meta["retried"] = True
    job.save_meta()
    bodies.work("returns_retry", page, job.id, fence, effect=is_last)
    return page if is_last else Retry(max=50)


@singleton_task(key="file", hold="running", on_conflict="wait", **OPTIONS)
def append(file: str, *, fence: Fence) -> str:
    """Every call runs, one at a time."""
    bodies.work("append", file, _job_id(), fence)
    return file


@singleton_task(key="page", hold="one_queued_one_running", **OPTIONS)
def sync(page: str, *, fence: Fence) -> str:
    """Each call is followed by a run that begins after it."""
    bodies.work("sync", page, _job_id(), fence)
    return page


@singleton_task(key="page", on_conflict="run_once_more", **OPTIONS)
def build(page: str, number: int, *, fence: Fence) -> str:
    """Likewise."""
    bodies.work("build", page, _job_id(), fence)
    return page


@singleton_task(on_conflict="wait", **OPTIONS)  # the older release goes by this, and not by `overlap`
def tick(*, fence: Fence) -> None:
    bodies.work("tick", "tick", _job_id(), fence, seconds=0.01)


def plain_tick() -> None:
    fence = current_fence()
    assert fence is not None
    bodies.work("plain_tick", "plain_tick", _job_id(), fence, seconds=0.01)


@singleton_task(key_space="billing", **OPTIONS)
def charge(order: str, *, fence: Fence) -> str:
    bodies.work("charge", order, _job_id(), fence)
    return order


@singleton_task(key_space="billing", **OPTIONS)
def refund(order: str, *, fence: Fence) -> str:
    bodies.work("refund", order, _job_id(), fence)
    return order
