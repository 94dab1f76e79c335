"""The options of `@singleton_task`: which are the guard's, which are Celery's, and which are neither.

Celery itself accepts any name as an attribute of the task, so a misspelt option would silently leave a task unguarded.
Here the guard, the installed Celery, or the task's base class must know the name.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from celery import Celery
from celery.app.task import Task, extract_exec_options

from taskguard.celery.guarding import POLICY_OPTIONS, checked
from taskguard.errors import ConfigurationError
from taskguard.protocol.options import problem_with_option
from taskguard.protocol.policy import Policy

ACKNOWLEDGEMENT = ("acks_late", "reject_on_worker_lost")
OF_THE_DECORATOR = ("shared", "filter", "lazy")
"""Options that `app.task` itself reads; its task does not have them."""
AUTORETRY = (
    *("autoretry_for", "dont_autoretry_for", "retry_kwargs", "retry_backoff", "retry_backoff_max", "retry_jitter"),
)
"""Options that Celery reads by name when it wraps a body with autoretry."""
OF_LATER_VERSIONS = ("acks_on_failure", "acks_on_timeout", "retry_on_worker_lost")
"""Options that Celery 5.7 has and 5.4 has not: one source may run on both, where the older takes no notice of them."""
_RENAMED = {"track_started": "taskguard_track_started", "Request": "taskguard_request"}


def split(options: Mapping[str, Any], base: type) -> tuple[Policy, dict[str, Any]]:
    """The policy, and the options of Celery or of *base*; raises `ConfigurationError` for any other name."""
    celery_options = {name: value for name, value in options.items() if name not in POLICY_OPTIONS}
    problems = [
        _problem(name, value, base)
        for name, value in celery_options.items()
        if not _is_celery_option(name, value, base)
    ]
    if problems:
        raise ConfigurationError("\n".join(problems))
    policy = checked({name: value for name, value in options.items() if name in POLICY_OPTIONS})
    return policy, {_RENAMED.get(name, name): value for name, value in celery_options.items()}


def check_for_class(options: Mapping[str, Any]) -> None:
    """Raise for options of `app.task`: for a task class Celery would ignore them."""
    for name in sorted(of_functions() - {"name", *OF_THE_DECORATOR}):
        if name in options:
            raise ConfigurationError(f"{name} is an option for a function; set it in the body of the task class")


def check_for_task(options: Mapping[str, Any]) -> None:
    """Raise for Celery's options: a task that Celery made already has them, except those that the guard changes."""
    others = [name for name in options if name not in ACKNOWLEDGEMENT]
    if others:
        raise ConfigurationError(f"{', '.join(others)}: @app.task makes this task; write Celery's options there")


def _is_celery_option(name: str, value: Any, base: type) -> bool:
    if name in of_functions() or name in (*AUTORETRY, *OF_LATER_VERSIONS) or name in of_messages():
        return True
    if not hasattr(base, name):
        return False
    # `delay=5` would only replace the method.
    return value is None or callable(value) or not inspect.isroutine(_static(base, name))


def _problem(name: str, value: Any, base: type) -> str:
    if hasattr(base, name):
        return f"{name} is a method of a task, not an option"
    ours = [field.name for field in fields(Policy) if field.init]
    others = of_functions() | of_messages() | {*AUTORETRY, *_attributes_of(base)}
    return problem_with_option(name, value, ours, others, ", or an option of Celery's; base=… may add its own")


@cache
def of_functions() -> frozenset[str]:
    """The options that the installed Celery has for a task made of a function."""
    made = inspect.signature(Celery._task_from_fun).parameters
    return frozenset(made) - {"self", "fun", "options"} | {*OF_THE_DECORATOR}


@cache
def of_messages() -> frozenset[str]:
    """The options that the installed Celery reads from a task for its messages: queue, priority, …"""
    return frozenset(extract_exec_options(_Anything()))


class _Anything:
    def __getattr__(self, name: str) -> str:
        return name


def _attributes_of(base: type) -> set[str]:
    """The attributes of *base* to suggest: no methods, nothing private."""
    # Read statically: some properties emit deprecation warnings.
    names = {name for name in dir(base) if not name.startswith("_")} - {"app", "request", "request_stack"}
    return {name for name in names if not inspect.isroutine(_static(base, name))}


def _static(base: type, name: str) -> Any:
    found = inspect.getattr_static(base, name, None)
    return found.__func__ if isinstance(found, (classmethod, staticmethod)) else found


def default_base(app: Any) -> type:
    """The default class of the app's tasks."""
    base: type = Task if app is None else app.Task
    return base
