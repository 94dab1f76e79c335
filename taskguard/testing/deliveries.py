"""Delivers a job as a queue does to a worker, on a given store and under a given id, once or again."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from taskguard.engine.under import known_by, run_claimed
from taskguard.engine.work import Work
from taskguard.errors import ConfigurationError
from taskguard.guard import Guard
from taskguard.protocol.entry_names import run_of
from taskguard.protocol.store import Held, Store
from taskguard.testing.swap import on_store


@dataclass(frozen=True, slots=True)
class Delivery:
    run: Callable[[Store, str], object]
    """Deliver the job under that id, once."""
    file: str
    """The file with its body."""


def delivery_of(job: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Delivery:
    """*job* is a guarded Celery task, a guarded RQ function, or a function that takes a `Guard`."""
    guarded = getattr(job, "taskguard", None)
    if guarded is None and callable(job) and not hasattr(job, "apply_async"):
        return Delivery(lambda store, _: job(Guard(store), *args, **kwargs), _file_of(job))
    if guarded is None:
        raise ConfigurationError(f"{job!r} is neither a guarded task nor a function")
    if hasattr(job, "apply"):
        _warm(job)
        return Delivery(lambda store, job_id: _by_celery(job, store, job_id, args, kwargs), _file_of(job.run))
    return Delivery(lambda store, job_id: _by_rq(guarded, store, job_id, args, kwargs), _file_of(guarded.function))


def _warm(task: Any) -> None:
    """Import what every child would import again, and slowly, because it is traced."""
    import celery.app.trace

    task.app.finalize()
    _ = task.backend, celery.app.trace


def _by_celery(task: Any, store: Store, job_id: str, args: Any, kwargs: Any) -> None:
    with on_store(task, store):
        task.apply(args, kwargs, task_id=job_id).get()


def _by_rq(guarded: Any, store: Store, job_id: str, args: Any, kwargs: Any) -> None:
    # What RQ's worker does with a job, without a Redis server: claim, run, settle.
    from taskguard.rq.delivery import to_its_end

    guard, policy, key = Guard(store), guarded.policy, guarded.keys(args, kwargs)
    name, _ = known_by(key, job_id, is_reused=policy.on_done != "rerun")
    claim = guard.new_claim(run_of(policy, key, job_id), job_id, policy)
    answer = guard.begin(claim, policy, idempotency_key=name)
    if isinstance(answer, Held):
        raise AssertionError(f"{key} is still {answer.state}")
    if isinstance(answer, Work):
        run_claimed(answer, lambda: to_its_end(lambda: guarded.call(args, kwargs)))


def _file_of(function: Any) -> str:
    return str(inspect.unwrap(function).__code__.co_filename)
