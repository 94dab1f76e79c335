"""What RQ says of the job in hand. The queue's own Redis may be away for a while: that is no other end of the job."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from rq.job import JobStatus

from taskguard.protocol.store import How
from taskguard.rq.guarded_job import GuardedJob
from taskguard.runtime.backoff import pauses
from taskguard.runtime.clocks import since_boot

AWAY = (RedisConnectionError, RedisTimeoutError)
"""What is raised while the queue's own Redis does not answer."""
LEAST_PATIENCE = 10.0
"""Seconds that it is asked at least."""

_logger = logging.getLogger("taskguard")


def status_of(job: GuardedJob) -> str:
    """Empty if the job was deleted."""
    status: Any = job.connection.hget(job.key, "status")
    return str((status or b"").decode())


def is_ours(job: GuardedJob, patience: float) -> bool:
    """Whether the job is this worker's to defer: RQ has not given it to another one, and has not ended it."""
    found: Any = patiently(lambda: job.connection.hmget(job.key, "status", "worker_name"), patience)
    status, worker = [(value or b"").decode() for value in found]
    return job.worker_name != "sync" and bool(status == JobStatus.STARTED) and bool(worker == job.worker_name)


def given_up(job: GuardedJob) -> How | None:
    """How the job was ended while it waited, if it was."""
    try:
        status = status_of(job)
    except RedisError:
        return None  # it is away for a moment
    if status not in ("", JobStatus.CANCELED):
        return None
    _logger.info("%s[%s] was %s while it waited", job.func_name, job.id, status or "deleted")
    return "revoked" if status else "expired"


def patiently(verb: Callable[[], Any], patience: float) -> Any:
    """Ask the queue's own Redis until it answers, for *patience* seconds."""
    give_up = since_boot() + max(patience, LEAST_PATIENCE)
    for pause in pauses(longest=1.0):
        try:
            return verb()
        except AWAY:
            if since_boot() + pause > give_up:
                raise
        time.sleep(pause)
    raise AssertionError("pauses never end")
