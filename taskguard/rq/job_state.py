"""What RQ knows of a running job. An outage of the queue's Redis must not change how the job ends."""

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
"""The errors that redis-py raises while the queue's own Redis is unavailable."""
LEAST_PATIENCE = 10.0
"""The least number of seconds to retry."""

_logger = logging.getLogger("taskguard")


def status_of(job: GuardedJob) -> str:
    """The status in the job's hash; empty if the job was deleted."""
    status: Any = job.connection.hget(job.key, "status")
    return str((status or b"").decode())


def is_ours(job: GuardedJob, patience: float) -> bool:
    """Whether this worker may defer the job: RQ has neither given it to another worker nor ended it."""
    found: Any = patiently(lambda: job.connection.hmget(job.key, "status", "worker_name"), patience)
    status, worker = [(value or b"").decode() for value in found]
    return job.worker_name != "sync" and bool(status == JobStatus.STARTED) and bool(worker == job.worker_name)


def given_up(job: GuardedJob) -> How | None:
    """How the job was ended while it waited, if it was."""
    try:
        status = status_of(job)
    except RedisError:
        return None  # Redis is unavailable for a moment
    if status not in ("", JobStatus.CANCELED):
        return None
    _logger.info("%s[%s] was %s while it waited", job.func_name, job.id, status or "deleted")
    return "revoked" if status else "expired"


def patiently(verb: Callable[[], Any], patience: float) -> Any:
    """Retry *verb* until the queue's own Redis answers, for *patience* seconds."""
    give_up = since_boot() + max(patience, LEAST_PATIENCE)
    for pause in pauses(longest=1.0):
        try:
            return verb()
        except AWAY:
            if since_boot() + pause > give_up:
                raise
        time.sleep(pause)
    raise AssertionError("pauses() is infinite")
