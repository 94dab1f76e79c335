"""One decorator over another: a guarded task must not become the body of an unguarded one."""

from __future__ import annotations

import inspect
from typing import Any
from weakref import WeakValueDictionary

from celery.local import PromiseProxy, Proxy

from taskguard.errors import ConfigurationError

MARK = "taskguard_policy"
"""An attribute that only guarded tasks have."""

_promises: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""Promises of guarded tasks, by `id()`: any attribute access on a promise would make its task."""


class SharedProxy(Proxy):  # type: ignore[misc]
    """A guarded shared task: it stands for the task of the current app."""

    __slots__ = ()


def remember(task: Any) -> Any:
    """Remember *task*, which is guarded, or the promise of a guarded task."""
    if issubclass(type(task), PromiseProxy):
        _promises[id(task)] = task
    return task


def is_guarded(what: Any) -> bool:
    """Whether *what* is a guarded task, a proxy of one, or a wrapper around one. Does not evaluate promises."""
    while what is not None:
        if _promises.get(id(what)) is what or type(what) is SharedProxy or hasattr(type(what), MARK):
            return True
        if issubclass(type(what), Proxy):
            return False
        if isinstance(what, (staticmethod, classmethod)):
            what = what.__func__
        else:
            what = getattr(what, "__dict__", {}).get("__wrapped__")
    return False


def refuse_guarded(what: Any) -> None:
    """Raise `ConfigurationError` if *what*, which would become a plain task, is guarded."""
    if is_guarded(what):
        raise ConfigurationError(
            "@app.task or @shared_task over @singleton_task makes a second, unguarded task; remove it: "
            "@singleton_task(app, …) makes the task, and takes Celery's options too"
        )


def refuse_guarded_body(task: Any) -> None:
    """The same for a plain task that already exists."""
    if task is not None and not hasattr(type(task), MARK):
        refuse_guarded(inspect.getattr_static(type(task), "run", None))
