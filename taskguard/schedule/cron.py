"""Cron expressions, in a time zone.

**When the clocks change.** A schedule that names its hours fires once for each local time that it names. If the clock
skips a time (02:30 in spring), it fires at 03:30 on that day. If a time comes twice (02:30 in autumn), it fires at the
first of the two. A schedule of every hour follows elapsed time: it fires nothing extra in spring, and in autumn it
fires in both passes of the repeated hour.

The search goes day by day and computes minutes only for matching days: it finds the next 29th of February in a
millisecond.
"""

from __future__ import annotations

import calendar
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from functools import cached_property
from typing import Literal

from taskguard.errors import ConfigurationError
from taskguard.schedule.boundaries import MICROS, micros, moment_of
from taskguard.schedule.fields import DAY, FIELDS, HOUR, MINUTE, MONTH, NICKNAMES, WEEKDAY

Days = Literal["and", "or"]
"""Whether a day must match day-of-month and day-of-week (Celery), or either if both are given (cron, RQ)."""

_DAY = timedelta(days=1)
_YEARS = 40
"""How far the search goes: within 28 years every date falls on every day of the week, except around 2100."""
_DAYS_KEPT = 8


@dataclass(frozen=True)
class Cron:
    minutes: frozenset[int] = MINUTE.all
    hours: frozenset[int] = HOUR.all
    days: frozenset[int] = DAY.all
    months: frozenset[int] = MONTH.all
    weekdays: frozenset[int] = WEEKDAY.all
    """0 is Sunday."""
    join: Days = "and"
    zone: tzinfo = timezone.utc
    zone_name: str = ""
    """The zone's name in `spec`, if the zone itself has none."""
    _known: dict[date, list[int]] = field(default_factory=dict, repr=False, compare=False, hash=False)

    @classmethod
    def parse(cls, expression: str, *, join: Days = "or", zone: tzinfo = timezone.utc) -> Cron:
        """Five fields, or a nickname such as `@daily`. If both days are given: "or" as in cron, "and" as in Celery."""
        parts = NICKNAMES.get(expression.strip().lower(), expression).split()
        if len(parts) != len(FIELDS):
            raise ConfigurationError(
                f"{expression!r} is not a cron expression; write five fields or a nickname such as @daily"
            )
        minutes, hours, days, months, weekdays = (field.read(part) for field, part in zip(FIELDS, parts, strict=True))
        if "*" in (parts[2], parts[4]):
            join = "and"  # a star restricts no day
        return cls(minutes, hours, days, months, weekdays, join, zone)

    @cached_property
    def spec(self) -> str:
        parts = (self.minutes, self.hours, self.days, self.months, self.weekdays)
        named = " ".join(_text(part, field.all) for part, field in zip(parts, FIELDS, strict=True))
        return f"cron {named} {self.join} {self.zone_name or getattr(self.zone, 'key', None) or self.zone}"

    def after(self, moment: int, /) -> int | None:
        found = None
        last = None
        for day in self._days_from(self._local_date(moment) - 2 * _DAY):
            if last is not None and day > last:
                break
            minutes = self._minutes_of(day)
            index = bisect_right(minutes, moment)
            if index < len(minutes):
                # A time that the clock skips may fire after the first boundaries of the next day.
                found = minutes[index] if found is None else min(found, minutes[index])
                last = last or day + 2 * _DAY
        return found

    def until(self, moment: int, /) -> int | None:
        found = None
        last = None
        for day in self._days_back_from(self._local_date(moment) + _DAY):
            if last is not None and day < last:
                break
            minutes = self._minutes_of(day)
            index = bisect_right(minutes, moment)
            if index:
                found = max(found or 0, minutes[index - 1])
                last = last or day - 2 * _DAY
        return found

    # -- days ------------------------------------------------------------------------------------------------------

    def _local_date(self, moment: int) -> date:
        return moment_of(moment).astimezone(self.zone).date()

    def _fits(self, day: date) -> bool:
        by_month, by_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return by_month and by_week if self.join == "and" else by_month or by_week

    def _days_from(self, day: date) -> Iterator[date]:
        for year, month in _months(day.year, day.month, 1):
            if month in self.months:
                for number in range(1, calendar.monthrange(year, month)[1] + 1):
                    found = date(year, month, number)
                    if found >= day and self._fits(found):
                        yield found

    def _days_back_from(self, day: date) -> Iterator[date]:
        for year, month in _months(day.year, day.month, -1):
            if month in self.months:
                for number in range(calendar.monthrange(year, month)[1], 0, -1):
                    found = date(year, month, number)
                    if found <= day and self._fits(found):
                        yield found

    # -- minutes ---------------------------------------------------------------------------------------------------

    def _minutes_of(self, day: date) -> list[int]:
        known = self._known.get(day)
        if known is None:
            if len(self._known) >= _DAYS_KEPT:
                self._known.clear()
            known = self._known[day] = sorted(set(self._compute(day)))
        return known

    def _compute(self, day: date) -> Iterable[int]:
        midnight = datetime.combine(day, time(), self.zone)
        start = micros(midnight.astimezone(timezone.utc))
        if self._offset(start - 3 * 3600 * MICROS) == self._offset(start + 27 * 3600 * MICROS):
            return (start + (hour * 60 + minute) * 60 * MICROS for hour in self.hours for minute in self.minutes)
        if self.hours == HOUR.all:
            return self._elapsed(day, start)
        # fold=0: the first of two; for a skipped time, the one by the offset before the change.
        named = (midnight.replace(hour=hour, minute=minute) for hour in self.hours for minute in self.minutes)
        return (micros(at.astimezone(timezone.utc)) for at in named)

    def _elapsed(self, day: date, start: int) -> Iterator[int]:
        """Every minute that passes on a day on which the clocks change."""
        for minute in range(-26 * 60, 51 * 60):
            moment = start + minute * 60 * MICROS
            local = moment_of(moment).astimezone(self.zone)
            if local.date() == day and local.minute in self.minutes:
                yield moment

    def _offset(self, moment: int) -> timedelta | None:
        return moment_of(moment).astimezone(self.zone).utcoffset()


def _months(year: int, month: int, step: int) -> Iterator[tuple[int, int]]:
    for number in range(_YEARS * 12):
        at = year * 12 + month - 1 + step * number
        if not 12 < at < 9998 * 12:
            return
        yield at // 12, at % 12 + 1


def _text(numbers: frozenset[int], every: frozenset[int]) -> str:
    return "*" if numbers == every else ",".join(map(str, sorted(numbers)))
