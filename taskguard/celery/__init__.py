"""taskguard for Celery: `@singleton_task`, `install`. Importing it changes nothing."""

from typing import TYPE_CHECKING

from taskguard.celery.app import install
from taskguard.celery.task import GuardedTask
from taskguard.engine.call_info import CallInfo

if TYPE_CHECKING:
    from taskguard.celery.typed import singleton_task
else:
    from taskguard.celery.task import singleton_task

__all__ = ["CallInfo", "GuardedTask", "install", "singleton_task"]
