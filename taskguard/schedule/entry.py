"""What is scheduled: an entry and its slots. Only this module makes the names of their keys and jobs."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Literal, get_args

from taskguard.errors import ConfigurationError
from taskguard.protocol.names import KEY, problem_with
from taskguard.protocol.policy import DEFAULT_KEEP
from taskguard.schedule.boundaries import MICROS, Clocked, Schedule, between, micros, moment_of
from taskguard.schedule.note import Note, Overlap

CatchUp = Literal["none", "latest", "all"]

PREFIX = "taskguard:schedule:"
"""The prefix of keys that only schedulers read."""
RUNS = "schedule:"
"""The prefix of keys that people look up: the runs."""
_JOBS = uuid.UUID("4b0d5f0a-6c1c-5d0e-9f43-7a1a7bd0c0de")
_DAY = 86400.0
SLOTS_REMEMBERED = 1000
LONGEST_MEMORY = 30 * _DAY
"""The store keeps how the last thousand slots ended: for two hours at least and thirty days at most."""
LEAST_PERIODS = 2
"""But never for less than two periods. The same holds for an entry's watermark, which is kept at least thirty days."""


@dataclass(frozen=True)
class Timing:
    """What happens to slots that come due during an earlier run, and to those missed while no scheduler ran."""

    overlap: Overlap = "skip"
    catch_up: CatchUp = "latest"
    catch_up_window: float | None = None
    """Seconds: slots missed longer ago are not caught up. None or infinity: no limit."""

    def __post_init__(self) -> None:
        if self.overlap not in get_args(Overlap):
            raise ConfigurationError(f"overlap={self.overlap!r} is not known; write {', '.join(get_args(Overlap))}")
        if self.catch_up not in get_args(CatchUp):
            raise ConfigurationError(f"catch_up={self.catch_up!r} is not known; write {', '.join(get_args(CatchUp))}")
        window = self.catch_up_window
        if window is not None and (isinstance(window, bool) or not isinstance(window, (int, float)) or not window > 0):
            raise ConfigurationError(f"catch_up_window must be a positive number of seconds, not {window!r}")

    @classmethod
    def of(cls, options: Mapping[str, Any], default: Timing | None = None) -> Timing:
        """The values in *options*; for those not given, the *default*."""
        said = {name: options[name] for name in cls.__dataclass_fields__ if options.get(name) is not None}
        return replace(default or cls(), **said)

    @property
    def longest_ago(self) -> float:
        return float("inf") if self.catch_up_window is None else self.catch_up_window


@dataclass(frozen=True)
class ScheduledEntry:
    """One line of a timetable. Processes with the same name, identity and schedule compute the same slots."""

    name: str
    schedule: Schedule
    identity: str = ""
    """What runs, where different work could share a name: the task, or the function and its arguments."""
    timing: Timing = Timing()
    one_off: bool = False
    """Runs once, at its first slot."""
    enabled: bool = True
    """The slots of a disabled entry pass without a run and are not caught up."""
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    expires_after: float | None = None
    """Seconds after which the queue itself drops its message."""
    begins_after: float = 0.0
    """Seconds before a worker may start its message: until then the message is not lost."""

    def __post_init__(self) -> None:
        # Its keys contain only a digest of the name, but events about its slots carry the name as their key.
        problem = problem_with("the name of a schedule entry", self.name, KEY)
        if problem:
            raise ConfigurationError(problem)

    @cached_property
    def label(self) -> str:
        """The entry's name in a key: readable, short and unique."""
        digest = hashlib.sha256(f"{self.name}\0{self.identity}".encode()).hexdigest()[:12]
        return f"{re.sub('[^A-Za-z0-9_.-]+', '-', self.name)[:48]}-{digest}"

    @cached_property
    def version(self) -> str:
        """Which schedule the entry is recorded under: a changed schedule starts over.

        Moments before `starts_at` or after `ends_at` are not open slots, so both are part of the version. But a one-off
        entry must not run again because its `ends_at` changed.
        """
        start = f" from {micros(self.starts_at)}" if self.starts_at else ""
        end = f" until {micros(self.ends_at)}" if self.ends_at else ""
        rest = f" once{start}" if self.is_once else f"{start}{end}"
        return hashlib.sha256(f"{self.schedule.spec}{rest}".encode()).hexdigest()[:16]

    @property
    def is_once(self) -> bool:
        return self.one_off or isinstance(self.schedule, Clocked)

    @property
    def is_exclusive(self) -> bool:
        """Whether its runs never overlap, so that one entry of the store stands for all of them."""
        return self.timing.overlap != "allow_all"

    @property
    def watermark_key(self) -> str:
        return f"{PREFIX}{self.label}:mark:{self.version}"

    @property
    def known_key(self) -> str:
        return f"{PREFIX}{self.label}:known"

    def slot(self, at: int) -> Slot:
        return Slot(self, at)

    def boundaries(self, after: int, until: int) -> Iterator[int]:
        """The boundaries later than *after*, up to *until*, at which the entry is valid; oldest first."""
        if self.starts_at is not None:
            after = max(after, micros(self.starts_at) - 1)
        if self.ends_at is not None:
            until = min(until, micros(self.ends_at))
        return between(self.schedule, after, until)

    def due(self, after: int, until: int) -> int | None:
        return next(self.boundaries(after, until), None)

    def keep_watermark_for(self, now: int) -> float:
        return max(LONGEST_MEMORY, self._periods(LEAST_PERIODS, now))

    def keep_slots_for(self, now: int) -> float:
        period = self._periods(1, now)
        return max(DEFAULT_KEEP, min(LONGEST_MEMORY, SLOTS_REMEMBERED * period), LEAST_PERIODS * period)

    def _periods(self, number: int, now: int) -> float:
        """A lower bound, in seconds, for this many periods from now on."""
        last = found = self.schedule.until(now) or now
        for _ in range(number + 1):
            following = self.schedule.after(found)
            if following is None:
                break
            last, found = found, following
        return (found - min(last, now)) / MICROS


@dataclass(frozen=True)
class Slot:
    """The moment a scheduled run is for. It determines the key and the id of the job."""

    entry: ScheduledEntry
    at: int

    @property
    def scheduled_for(self) -> datetime:
        return moment_of(self.at)

    @cached_property
    def key(self) -> str:
        """The same for every run of this slot: for an API that takes an idempotency key.

        One moment is one slot under any version of the schedule: one of two schedulers may not have seen a change yet.
        A one-off entry is identified by its version instead, so a changed one is another slot.
        """
        of = self.entry
        when = f"{of.version}:once" if of.is_once else self.scheduled_for.isoformat()
        return f"{PREFIX}{of.label}:{when}"

    @cached_property
    def job_id(self) -> str:
        """The id of the job, the same in every scheduler. (A UUID: Celery and RQ both accept it.)"""
        return str(uuid.uuid5(_JOBS, self.key))

    @property
    def run_key(self) -> str:
        """The store entry that the run holds: one for all slots if runs must not overlap."""
        of = self.entry
        return f"{RUNS}{of.label}:run" if of.is_exclusive else f"{RUNS}{of.label}:run:{self.job_id}"

    @property
    def keep_for(self) -> float:
        return self.entry.keep_slots_for(self.at)

    def note(self) -> Note:
        return Note(
            schedule=self.entry.name,
            at=self.at / MICROS,
            key=self.key,
            run=self.run_key,
            keep_for=self.keep_for,
            overlap=self.entry.timing.overlap,
        )
