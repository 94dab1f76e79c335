"""`@singleton_task`: a function whose jobs run once.

RQ stores a job's function by name, and the worker imports it by that name. It finds the guarded function there, so any
worker guards it. That is why the decorated function must be importable under its own name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, overload

from redis import Redis
from rq import Queue, get_current_job

from taskguard.errors import ConfigurationError
from taskguard.keys.signatures import read_signature
from taskguard.rq.guarding import BEGUN, JobGuard


@overload
def singleton_task(function: Callable[..., Any], /) -> Any: ...
@overload
def singleton_task(
    *, queue: Queue | str | None = None, connection: Redis | None = None, **options: Any
) -> Callable[[Any], Any]: ...


def singleton_task(
    function: Any = None,
    /,
    *,
    queue: Queue | str | None = None,
    connection: Redis | None = None,
    **options: Any,
) -> Any:
    """Guard a function's jobs, and give it `enqueue`, `delay`, `enqueue_at` and `enqueue_in`.

    Without *queue*, enqueue it with a `GuardedQueue`; with any other queue the worker claims the key. Other options are
    RQ's own: defaults for calls that do not give them.
    """
    if function is not None and not callable(function):
        raise ConfigurationError(f"singleton_task takes a function, not {function!r}; give the queue as queue=")
    if isinstance(queue, str) and connection is None:
        raise ConfigurationError(f"queue={queue!r} needs its connection; write @singleton_task(queue=…, connection=…)")

    def decorate(what: Any) -> Any:
        # A work horse imports the module for one job and does not check the options again.
        is_checked = get_current_job() is not None
        if not is_checked:
            _check(what)
        guarded = JobGuard(what, options, queue, connection, is_checked=is_checked)
        guarded.check()
        return _wrapped(what, guarded)

    return decorate if function is None else decorate(function)


def _check(what: Any) -> None:
    if not inspect.isfunction(what):
        raise ConfigurationError(f"singleton_task takes a function, not {what!r}; RQ imports it by its name")
    if isinstance(getattr(what, "taskguard", None), JobGuard):
        raise ConfigurationError("the function is guarded already; write all options in one @singleton_task(…)")
    if getattr(getattr(what, "delay", None), "__globals__", {}).get("__name__") == "rq.decorators":
        raise ConfigurationError(
            "@singleton_task over RQ's @job would ignore the options of @job; remove @job, and write its queue, "
            "connection and options in @singleton_task(queue=…, connection=…)"
        )
    if inspect.isgeneratorfunction(what) or inspect.isasyncgenfunction(what):
        raise ConfigurationError(
            f"{what!r} is a generator: a call only starts it, so its end cannot be guarded; decorate a plain function"
        )


def _wrapped(function: Callable[..., Any], guarded: JobGuard) -> Any:
    @functools.wraps(function)
    def job(*args: Any, **kwargs: Any) -> Any:
        current = get_current_job()
        if current is None or not _is_of(current, guarded):
            return guarded.call(args, kwargs)  # a direct call, perhaps by the body of another job
        from taskguard.rq.delivery import deliver  # only workers need this code

        return deliver(current, guarded, functools.partial(guarded.call, args, kwargs), args, kwargs)

    def queue() -> Any:
        from taskguard.rq.queue import claiming  # workers do not need it

        return claiming(guarded.destination)

    def enqueue(*args: Any, **kwargs: Any) -> Any:
        return queue().enqueue(job, *args, **{**guarded.defaults, **kwargs})

    def enqueue_at(moment: datetime, *args: Any, **kwargs: Any) -> Any:
        return queue().enqueue_at(moment, job, *args, **{**guarded.defaults, **kwargs})

    def enqueue_in(delay: timedelta, *args: Any, **kwargs: Any) -> Any:
        return queue().enqueue_in(delay, job, *args, **{**guarded.defaults, **kwargs})

    made: Any = job
    made.taskguard = guarded
    made.enqueue = made.delay = enqueue
    made.enqueue_at = enqueue_at
    made.enqueue_in = enqueue_in
    if guarded.fence_name is not None:
        made.__signature__ = _without_fence(function, guarded.fence_name)
    return made


def _is_of(current: Any, guarded: JobGuard) -> bool:
    """Whether the current job is one of this function, and its body has not started yet."""
    if getattr(current, BEGUN, False):
        return False
    if current.instance is None and current.func_name == guarded.name:
        return True
    return getattr(current.func, "taskguard", None) is guarded  # a method, or enqueued under another name


def _without_fence(function: Callable[..., Any], name: str) -> inspect.Signature:
    """The signature as callers see it: the guard passes the fence."""
    signature = read_signature(function)
    if signature.parameters[name].kind is inspect.Parameter.POSITIONAL_ONLY:
        raise ConfigurationError(
            f"{function.__qualname__}: the guard passes {name} by name, so it cannot be positional-only; "
            "move it after the /"
        )
    return signature.replace(parameters=[p for p in signature.parameters.values() if p.name != name])
