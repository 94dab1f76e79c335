"""Dawn, noon, dusk and the like, at a place on Earth. Needs the package `ephem`.

An instant found by iteration differs by some milliseconds with the moment it is looked for from. So each day's is
always looked for from the beginning of that day, in UTC, and rounded to the second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from taskguard.schedule.boundaries import MICROS, micros, moment_of

_DAY = timedelta(days=1)
_MOST_DAYS = 400
"""The sun does not rise for half a year at most."""


@dataclass(frozen=True)
class Solar:
    event: str
    latitude: float
    longitude: float
    next_event: Callable[[datetime], datetime | None]
    """The first such event later than a moment in UTC; None if there is none within a day."""

    @property
    def spec(self) -> str:
        return f"solar {self.event} {self.latitude:.6f} {self.longitude:.6f}"

    def after(self, moment: int, /) -> int | None:
        day = _day_of(moment) - _DAY
        for _ in range(_MOST_DAYS):
            found = self._on(day)
            if found is not None and found > moment:
                return found
            day += _DAY
        return None

    def until(self, moment: int, /) -> int | None:
        day = _day_of(moment) + _DAY
        for _ in range(_MOST_DAYS):
            found = self._on(day)
            if found is not None and found <= moment:
                return found
            day -= _DAY
        return None

    def _on(self, day: datetime) -> int | None:
        found = self.next_event(day)
        if found is None or found >= day + _DAY:
            return None
        return round(micros(found) / MICROS) * MICROS


def _day_of(moment: int) -> datetime:
    at = moment_of(moment).astimezone(timezone.utc)
    return at.replace(hour=0, minute=0, second=0, microsecond=0)
