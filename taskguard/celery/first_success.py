"""Skips one read of the result backend whose answer the guard already knows.

Before a key-value result backend stores a result, it checks whether an earlier run of the job has succeeded: a lost
worker that comes back must not overwrite that result. The check costs a round trip per job, and it is not safe: read
and write are two steps. The store accepts the end of a guarded job once, from the newest run. There the check is
skipped.
"""

from __future__ import annotations

from typing import Any

from celery import states
from celery.backends.base import BaseKeyValueStoreBackend

_LOOK = "_get_task_meta_for"
_first: set[str] = set()
"""Jobs whose success the store has accepted, and whose result is about to be stored."""


def expect(backend: Any, task_id: str) -> None:
    """The next result that *backend* stores for this job is its success, and its first."""
    if not isinstance(backend, BaseKeyValueStoreBackend) or not hasattr(backend, _LOOK):
        return  # it does not check, or in an unknown way
    if _LOOK not in vars(backend):
        _teach(backend)
    _first.add(task_id)


def expect_no_more(task_id: str) -> None:
    """The result was stored, or failed to be."""
    _first.discard(task_id)


def _teach(backend: Any) -> None:
    look = getattr(backend, _LOOK)

    def known_or_looked_up(task_id: str) -> Any:
        if task_id in _first:
            _first.discard(task_id)  # if storing fails now, the next try checks
            return {"status": states.PENDING, "result": None}
        return look(task_id)

    setattr(backend, _LOOK, known_or_looked_up)
