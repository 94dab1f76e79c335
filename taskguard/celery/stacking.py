"""One decorator over another: what is guarded already must not become the body of a task that is not."""

from __future__ import annotations

import inspect
from typing import Any
from weakref import WeakValueDictionary

from celery.local import PromiseProxy, Proxy

from taskguard.errors import ConfigurationError

MARK = "taskguard_policy"
"""What a guarded task has, and no other."""

_promises: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""Promises of guarded tasks, by their ids: whatever is asked of a promise makes its task."""


class SharedProxy(Proxy):  # type: ignore[misc]
    """A guarded task of every app; of the current one, when it is used."""

    __slots__ = ()


def remember(task: Any) -> Any:
    """*task* is guarded, or is the promise of a guarded one."""
    if issubclass(type(task), PromiseProxy):
        _promises[id(task)] = task
    return task


def is_guarded(what: Any) -> bool:
    """Whether *what* is a guarded task, stands for one, or is a wrapper around one. Makes no task."""
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
    """ConfigurationError if a plain task is to be made of *what*, which is guarded."""
    if is_guarded(what):
        raise ConfigurationError(
            "@app.task or @shared_task over @singleton_task makes a second task, and that one is not guarded; leave it "
            "out: @singleton_task(app, …) makes the task, and takes Celery's options too"
        )


def refuse_guarded_body(task: Any) -> None:
    """The same for a plain task that was made where nobody could refuse it."""
    if task is not None and not hasattr(type(task), MARK):
        refuse_guarded(inspect.getattr_static(type(task), "run", None))
