"""Finds jobs whose worker and horse died. RQ waits a minute and a half to be sure, and checks about every ten minutes.

The store knows as soon as the lease expires. If RQ will retry the job (`Retry`), the worker marks its execution as
abandoned and runs RQ's own maintenance. A job without retries left, which RQ would fail, is left to RQ's own schedule:
its horse may only be suspended and still finish.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast

from redis import Redis
from rq import Queue
from rq.registry import StartedJobRegistry
from rq.utils import as_text

from taskguard.errors import StoreError
from taskguard.protocol.entry_names import job_of
from taskguard.protocol.store import Entry
from taskguard.rq.claims import JobClaims
from taskguard.rq.guarded_job import ENVELOPE_FIELD, GuardedJob, as_guarded_job
from taskguard.rq.guarding import Settings, guard_on, own_namespace
from taskguard.rq.job_metadata import NAMESPACE

EVERY = 5
"""Seconds between two checks of a queue, by any worker."""
AT_ONCE = 100
"""How many executions of a queue one check covers: those whose worker has been silent longest."""


def find_abandoned(queues: Sequence[Queue], worker: str) -> bool:
    """Whether one of the queues has work for RQ's maintenance."""
    found = [_find(queue, worker) for queue in queues]
    return any(found)


def _find(queue: Queue, worker: str) -> bool:
    connection = queue.connection
    if not connection.set(f"rq:taskguard:look:{queue.name}", worker, nx=True, px=EVERY * 1000 - 500):
        return False
    registry = queue.started_job_registry
    names = [as_text(cast(bytes, name)) for name in connection.zrange(registry.key, 0, AT_ONCE - 1)]
    dead = [name for name in _retried(connection, queue, names) if _is_dead(queue, name)]
    if dead:
        # Only if it is still there: its worker may just have ended it.
        connection.zadd(registry.key, dict.fromkeys(dead, 1), xx=True)
    return bool(connection.zcount(registry.key, 0, time.time()))


def _retried(connection: Redis, queue: Queue, names: Sequence[str]) -> list[str]:
    """The executions of guarded jobs with retries left."""
    with connection.pipeline(transaction=False) as pipeline:
        for name in names:
            key = queue.job_class.key_for(StartedJobRegistry.parse_job_id(name))
            pipeline.hmget(key, ENVELOPE_FIELD, "retries_left")
        found: list[Any] = pipeline.execute()
    return [name for name, (envelope, left) in zip(names, found, strict=True) if envelope and int(left or 0) > 0]


def _is_dead(queue: Queue, name: str) -> bool:
    """Whether the store has that very execution as running, with an expired lease.

    A later execution of the same job may be importing its code, and has not claimed yet: it is alive.
    """
    job_id, _, execution = name.rpartition(":")
    job = queue.fetch_job(job_id)
    if job is None:
        return False
    ours = as_guarded_job(job)
    try:
        own = [
            entry for entry in _entries(ours) if entry is not None and JobClaims(ours, None).is_this_job(entry.owner)
        ]
    except StoreError:
        return False  # the next check decides
    ran = [entry for entry in own if entry.state == "running"]
    return any(entry.attempt == execution for entry in ran) and all(entry.remaining <= 0 for entry in ran)


def _entries(job: GuardedJob) -> list[Entry | None]:
    """The entries that it may run under; none if its function has its own store, which only its code can open."""
    envelope, connection, serializer = job.envelope, job.connection, job.serializer
    found: list[Entry | None] = []
    namespace = own_namespace(envelope.store)
    if envelope.key and namespace is not None:
        store = guard_on(connection, serializer, Settings(namespace=namespace)).store
        found += [store.get(envelope.key), store.get(job_of(envelope.key, JobClaims(job, None).owner))]
    if envelope.slot:
        store = guard_on(connection, serializer, Settings(namespace=envelope.slot.get(NAMESPACE, "taskguard"))).store
        found.append(store.get(envelope.slot.get("run", "")))
    return found
