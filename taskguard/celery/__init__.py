"""taskguard for Celery: `@singleton_task`, `install`. Importing it changes nothing."""

from taskguard.calls import CallInfo
from taskguard.celery.app import install
from taskguard.celery.task import GuardedTask, singleton_task

__all__ = ["CallInfo", "GuardedTask", "install", "singleton_task"]
