"""Slots, overlap and catch-up: scheduled work that happens once, with any number of schedulers. No Celery, no RQ."""

from taskguard.schedule.boundaries import Asked, Clocked, Interval, Schedule
from taskguard.schedule.cron import Cron
from taskguard.schedule.entry import Note, ScheduledEntry, Slot, Timing
from taskguard.schedule.keeper import Timekeeper
from taskguard.schedule.running import claim_of, gives_up
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
    "gives_up",
]
