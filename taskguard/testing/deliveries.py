"""A job as a queue delivers it to a worker, on a given store and under a given id; again, if need be."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from taskguard.errors import ConfigurationError
from taskguard.guard import Guard
from taskguard.protocol.store import Completed, Held, Store
from taskguard.testing.swap import on_store


@dataclass(frozen=True, slots=True)
class Delivery:
    run: Callable[[Store, str], object]
    """Deliver the job under that id, once."""
    file: str
    """Where its body is written."""


def delivery_of(job: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Delivery:
    """*job* is a guarded Celery task, a guarded RQ function, or a function that is given a `Guard`."""
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
    """Load what every child would load anew, and slowly, as it is traced."""
    import celery.app.trace

    task.app.finalize()
    _ = task.backend, celery.app.trace


def _by_celery(task: Any, store: Store, job_id: str, args: Any, kwargs: Any) -> None:
    with on_store(task, store):
        task.apply(args, kwargs, task_id=job_id).get()


def _by_rq(guarded: Any, store: Store, job_id: str, args: Any, kwargs: Any) -> None:
    # What RQ's worker does with a job, without RQ's server: claim, run, settle.
    policy, key = guarded.policy, guarded.keys(args, kwargs)
    guard = Guard(store)
    by_key = job_id if policy.on_done == "rerun" else key
    answer = guard.begin(guard.new_claim(key, job_id, policy), policy, idempotency_key=by_key)
    if isinstance(answer, Completed):
        return
    if isinstance(answer, Held):
        raise AssertionError(f"{key} is still {answer.state}")
    try:
        try:
            with answer:
                value = guarded.call(args, kwargs)
        except Exception as error:
            answer.fail_quietly(error)
            raise
        answer.succeed(value)
    finally:
        answer.abandon()


def _file_of(function: Any) -> str:
    return str(inspect.unwrap(function).__code__.co_filename)
