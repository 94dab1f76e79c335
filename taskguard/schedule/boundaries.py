"""What a schedule is: boundaries in time, searched forwards or backwards. And the simplest schedules.

Moments are whole microseconds since 1970 in UTC. Every scheduler with the same schedule computes the same boundaries,
whenever it started and whatever it remembers: a slot is named after its boundary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import Protocol

from taskguard.errors import ConfigurationError

MICROS = 1_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
SHORTEST_INTERVAL = 0.1


class Schedule(Protocol):
    @property
    def spec(self) -> str:
        """A text that is the same in every process for the same boundaries: if it changes, the schedule changed."""

    def after(self, moment: int, /) -> int | None:
        """The first boundary later than *moment*; None if there is none."""

    def until(self, moment: int, /) -> int | None:
        """The last boundary not later than *moment*; None if there was none."""


def micros(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def moment_of(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


def between(schedule: Schedule, after: int, until: int) -> Iterator[int]:
    """The boundaries later than *after* and not later than *until*, oldest first."""
    found = schedule.after(after)
    while found is not None and found <= until:
        yield found
        found = schedule.after(found)


@dataclass(frozen=True)
class Interval:
    """Every *seconds*, on a grid that starts at *anchor*: by default the beginning of 1970 in UTC.

    It counts elapsed time, regardless of clock changes. With an anchor on a Monday at 06:00 UTC, an interval of seven
    days fires every Monday at 06:00 UTC.
    """

    seconds: float
    anchor: datetime = EPOCH

    def __post_init__(self) -> None:
        if not self.seconds >= SHORTEST_INTERVAL:
            raise ConfigurationError(f"an interval must be at least {SHORTEST_INTERVAL} s, not {self.seconds!r} s")
        if self.anchor.tzinfo is None:
            raise ConfigurationError(f"the anchor {self.anchor.isoformat()} has no time zone; add one")

    @cached_property
    def spec(self) -> str:
        return f"interval {self._step} from {self._start % self._step}"

    @cached_property
    def _step(self) -> int:
        return round(self.seconds * MICROS)

    @cached_property
    def _start(self) -> int:
        return micros(self.anchor)

    def after(self, moment: int, /) -> int | None:
        return moment + self._step - (moment - self._start) % self._step

    def until(self, moment: int, /) -> int | None:
        return moment - (moment - self._start) % self._step


@dataclass(frozen=True)
class Clocked:
    """One moment."""

    at: datetime

    def __post_init__(self) -> None:
        if self.at.tzinfo is None:
            raise ConfigurationError(f"the moment {self.at.isoformat()} has no time zone; add one")

    @property
    def spec(self) -> str:
        return f"clocked {micros(self.at)}"

    def after(self, moment: int, /) -> int | None:
        at = micros(self.at)
        return at if at > moment else None

    def until(self, moment: int, /) -> int | None:
        at = micros(self.at)
        return at if at <= moment else None


@dataclass(frozen=True)
class Asked:
    """Boundaries that another library computes: two functions of an aware moment return the next and the last one.

    Their results must depend only on that moment.
    """

    spec: str
    later_than: Callable[[datetime], datetime | None]
    not_later_than: Callable[[datetime], datetime | None]

    def after(self, moment: int, /) -> int | None:
        found = self.later_than(moment_of(moment))
        return None if found is None else micros(found)

    def until(self, moment: int, /) -> int | None:
        found = self.not_later_than(moment_of(moment))
        return None if found is None else micros(found)
