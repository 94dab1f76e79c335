"""Slots, overlap and catch-up: scheduled work that happens once, with any number of schedulers. No Celery, no RQ.

Names are loaded when they are first used: a worker needs little of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskguard.schedule.boundaries import Asked, Clocked, Interval, Schedule
    from taskguard.schedule.cron import Cron
    from taskguard.schedule.entry import ScheduledEntry, Slot, Timing
    from taskguard.schedule.keeper import Timekeeper
    from taskguard.schedule.note import Note
    from taskguard.schedule.running import claim_of
    from taskguard.schedule.solar import Solar

__all__ = [
    "Asked",
    "Clocked",
    "Cron",
    "Interval",
    "Note",
    "Schedule",
    "ScheduledEntry",
    "Slot",
    "Solar",
    "Timekeeper",
    "Timing",
    "claim_of",
]

_HOME = {
    "Cron": "cron",
    "Note": "note",
    "ScheduledEntry": "entry",
    "Slot": "entry",
    "Solar": "solar",
    "Timekeeper": "keeper",
    "Timing": "entry",
    "claim_of": "running",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME.get(name, 'boundaries')}"), name)
    globals()[name] = value
    return value
