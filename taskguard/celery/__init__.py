"""taskguard for Celery: `@singleton_task`, `install`. Importing it changes nothing."""

from taskguard.celery.app import install
from taskguard.celery.task import GuardedTask, singleton_task
from taskguard.engine.call_info import CallInfo

__all__ = ["CallInfo", "GuardedTask", "install", "singleton_task"]
