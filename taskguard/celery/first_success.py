"""Spares Celery a question that the guard has just answered.

Before a key-value result backend stores a result it looks whether an earlier run of the job has succeeded: a lost
worker that comes back must not overwrite that. It costs an exchange for each job, and cannot be sure, for the look and
the write are two steps. The end of a guarded job was accepted from the newest run, once: there the look is left out.
"""

from __future__ import annotations

from typing import Any

from celery import states
from celery.backends.base import BaseKeyValueStoreBackend

_LOOK = "_get_task_meta_for"
_first: set[str] = set()
"""Jobs whose success is accepted and about to be stored."""


def expect(backend: Any, task_id: str) -> None:
    """The next thing that *backend* is told of this job is its success, and it is the first."""
    if not isinstance(backend, BaseKeyValueStoreBackend) or not hasattr(backend, _LOOK):
        return  # it does not look, or in a way that is not known here
    if _LOOK not in vars(backend):
        _teach(backend)
    _first.add(task_id)


def expect_no_more(task_id: str) -> None:
    """Whatever became of it, it was told."""
    _first.discard(task_id)


def _teach(backend: Any) -> None:
    look = getattr(backend, _LOOK)

    def known_or_looked_up(task_id: str) -> Any:
        if task_id in _first:
            _first.discard(task_id)  # if it cannot be stored now, the next try looks
            return {"status": states.PENDING, "result": None}
        return look(task_id)

    setattr(backend, _LOOK, known_or_looked_up)
