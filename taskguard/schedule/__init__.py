"""Slots, overlap and catch-up: scheduled work runs once, with any number of schedulers. Imports no Celery and no RQ."""

from typing import TYPE_CHECKING

from taskguard.lazily import lazily

if TYPE_CHECKING:
    from taskguard.schedule.cron import Cron
    from taskguard.schedule.note import Note

__all__ = ["Cron", "Note"]

__getattr__, __dir__ = lazily(__name__, {"taskguard.schedule.cron": "Cron", "taskguard.schedule.note": "Note"})
