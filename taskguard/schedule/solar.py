"""Dawn, noon, dusk and the like, at a place on Earth. Needs the package `ephem`.

`ephem` finds an instant by iteration, and the result varies by milliseconds with the start of the search. So the search
for a day's event always starts an hour before that day, in UTC, and the result is rounded to the second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

from taskguard.schedule.boundaries import MICROS, micros, moment_of

_DAY = timedelta(days=1)
_BEFORE = timedelta(hours=1)
_APART = timedelta(hours=12)
"""Two events of one kind are never closer than this."""
_MOST_DAYS = 400
"""How far the search goes: the polar night lasts at most half a year."""
_DAYS_KEPT = 1000
"""How many days are cached: in the polar night each search covers half a year."""


@dataclass(frozen=True)
class Solar:
    event: str
    latitude: float
    longitude: float
    next_event: Callable[[datetime], datetime | None]
    """The first such event later than a moment in UTC; None if there is none within a day."""
    _known: dict[datetime, tuple[int, ...]] = field(default_factory=dict, repr=False, compare=False, hash=False)

    @property
    def spec(self) -> str:
        return f"solar {self.event} {self.latitude:.6f} {self.longitude:.6f}"

    def after(self, moment: int, /) -> int | None:
        day = _day_of(moment) - _DAY
        for _ in range(_MOST_DAYS):
            for found in self._on(day):
                if found > moment:
                    return found
            day += _DAY
        return None

    def until(self, moment: int, /) -> int | None:
        day = _day_of(moment) + _DAY
        for _ in range(_MOST_DAYS):
            for found in reversed(self._on(day)):
                if found <= moment:
                    return found
            day -= _DAY
        return None

    def _on(self, day: datetime) -> tuple[int, ...]:
        known = self._known.get(day)
        if known is None:
            if len(self._known) >= _DAYS_KEPT:
                self._known.clear()
            known = self._known[day] = tuple(self._compute(day))
        return known

    def _compute(self, day: datetime) -> Iterator[int]:
        """The events of a day: two on a day when the event, a little earlier each day, moves across midnight in UTC."""
        found = self.next_event(day - _BEFORE)
        while found is not None and (at := round(micros(found) / MICROS) * MICROS) < micros(day + _DAY):
            if at >= micros(day):
                yield at
            found = self.next_event(found + _APART)


def _day_of(moment: int) -> datetime:
    at = moment_of(moment).astimezone(timezone.utc)
    return at.replace(hour=0, minute=0, second=0, microsecond=0)
