"""The worker, host and process that this is, for people."""

from __future__ import annotations

import os

_worker = ""
_RANDOM = 32
"""Characters of a name that RQ makes up; its first eight tell workers apart."""
_host = os.uname().nodename


def work_as(worker: str) -> None:
    """From now on this process, and every process that it forks, is the worker of that name."""
    global _worker
    # A Celery worker has its host in its name; an RQ worker has a generated name.
    _worker = worker if "@" in worker else f"{worker[:8] if len(worker) == _RANDOM else worker}@{_host}"


def whereabouts() -> str:
    return f"{(_worker or _host)[:100]}:{os.getpid()}"
