"""taskguard for RQ: `@singleton_task`, `GuardedQueue`, `GuardedWorker` and a cron. Importing it changes nothing.

Names are loaded on first use: a work horse imports the module of its job again for each job.
"""

from typing import TYPE_CHECKING

from taskguard.lazily import lazily

if TYPE_CHECKING:
    from taskguard.engine.call_info import CallInfo
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

__getattr__, __dir__ = lazily(
    __name__,
    {
        "taskguard.engine.call_info": "CallInfo",
        "taskguard.rq.cron": "GuardedCronScheduler",
        "taskguard.rq.job": "singleton_task",
        "taskguard.rq.queue": "GuardedQueue",
        "taskguard.rq.worker": "GuardedSimpleWorker GuardedSpawnWorker GuardedWorker GuardedWorkerMixin",
    },
)
