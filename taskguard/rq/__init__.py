"""taskguard for RQ: `@singleton_task`, `GuardedQueue`, `GuardedWorker` and a cron. Importing it changes nothing.

Names are loaded when they are first used: a work horse imports the module of its job anew for each job.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskguard.calls import CallInfo
    from taskguard.rq.cron import GuardedCronScheduler
    from taskguard.rq.queue import GuardedQueue
    from taskguard.rq.typed import singleton_task
    from taskguard.rq.worker import GuardedSimpleWorker, GuardedSpawnWorker, GuardedWorker, GuardedWorkerMixin

__all__ = [
    "CallInfo",
    "GuardedCronScheduler",
    "GuardedQueue",
    "GuardedSimpleWorker",
    "GuardedSpawnWorker",
    "GuardedWorker",
    "GuardedWorkerMixin",
    "singleton_task",
]

_HOME = {
    "CallInfo": "taskguard.calls",
    "GuardedCronScheduler": "taskguard.rq.cron",
    "GuardedQueue": "taskguard.rq.queue",
    "singleton_task": "taskguard.rq.job",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME.get(name, "taskguard.rq.worker")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
