"""The options of `@singleton_task`: which are the guard's, which are Celery's, and which are neither.

Celery itself takes any name as an attribute of the task, so a misspelt option would leave a task unguarded without a
word. Here a name must be known: to the guard, to the installed Celery, or to the task's base class.
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
"""Options that `app.task` itself reads; the task that it makes does not have them."""
AUTORETRY = (
    *("autoretry_for", "dont_autoretry_for", "retry_kwargs", "retry_backoff", "retry_backoff_max", "retry_jitter"),
)
"""Options that Celery reads by their names when it wraps a body that is retried."""
_RENAMED = {"track_started": "taskguard_track_started", "Request": "taskguard_request"}


def split(options: Mapping[str, Any], base: type) -> tuple[Policy, dict[str, Any]]:
    """The policy, and the options that are Celery's or those of *base*; ConfigurationError for any other name."""
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
    """Of a task class Celery reads no option of `app.task`: it would stay an attribute that nobody looks at."""
    for name in sorted(of_functions() - {"name", *OF_THE_DECORATOR}):
        if name in options:
            raise ConfigurationError(f"{name} is an option for a function; a task class says it in its own body")


def check_for_task(options: Mapping[str, Any]) -> None:
    """A task that Celery has made has its options already, but for those that the guard changes."""
    others = [name for name in options if name not in ACKNOWLEDGEMENT]
    if others:
        raise ConfigurationError(
            f"{', '.join(others)}: options of Celery belong to @app.task where the task is made by that"
        )


def _is_celery_option(name: str, value: Any, base: type) -> bool:
    if name in of_functions() or name in AUTORETRY or name in of_messages():
        return True
    if not hasattr(base, name):
        return False
    # `delay=5` would take the place of the method, and be no option of anything.
    return value is None or callable(value) or not inspect.isroutine(_static(base, name))


def _problem(name: str, value: Any, base: type) -> str:
    if hasattr(base, name):
        return f"{name} is a method of a task, and not an option"
    ours = [field.name for field in fields(Policy) if field.init]
    others = of_functions() | of_messages() | {*AUTORETRY, *_attributes_of(base)}
    return problem_with_option(name, value, ours, others, ", or an option of Celery's; base=… may add its own")


@cache
def of_functions() -> frozenset[str]:
    """What the installed Celery can be told about a task that it makes of a function."""
    made = inspect.signature(Celery._task_from_fun).parameters
    return frozenset(made) - {"self", "fun", "options"} | {*OF_THE_DECORATOR}


@cache
def of_messages() -> frozenset[str]:
    """What the installed Celery takes from a task for its messages, whether the task has it or not: queue, priority."""
    return frozenset(extract_exec_options(_Anything()))


class _Anything:
    def __getattr__(self, name: str) -> str:
        return name


def _attributes_of(base: type) -> set[str]:
    """What of *base* is worth proposing: no methods, nothing private."""
    # Looked at without its properties, some of which warn of their end.
    names = {name for name in dir(base) if not name.startswith("_")} - {"app", "request", "request_stack"}
    return {name for name in names if not inspect.isroutine(_static(base, name))}


def _static(base: type, name: str) -> Any:
    found = inspect.getattr_static(base, name, None)
    return found.__func__ if isinstance(found, (classmethod, staticmethod)) else found


def default_base(app: Any) -> type:
    """The class that the app's tasks have where nothing else is said."""
    base: type = Task if app is None else app.Task
    return base
