"""Which worker, host and process this is, as people look for it."""

from __future__ import annotations

import os

_worker = ""
_host = os.uname().nodename


def work_as(worker: str) -> None:
    """From here on this process, and those that it forks, are a worker of that name."""
    global _worker
    # A worker of Celery has its host in its name; one of RQ has a name made up for it.
    _worker = worker if "@" in worker else f"{worker}@{_host}"


def whereabouts() -> str:
    return f"{(_worker or _host)[:100]}:{os.getpid()}"
