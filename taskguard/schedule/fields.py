"""The fields of a cron expression, read as numbers."""

from __future__ import annotations

from dataclasses import dataclass

from taskguard.errors import ConfigurationError

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


@dataclass(frozen=True)
class Field:
    name: str
    first: int
    last: int
    names: tuple[str, ...] = ()

    @property
    def all(self) -> frozenset[int]:
        return frozenset(range(self.first, self.last + 1))

    def read(self, text: str) -> frozenset[int]:
        found: set[int] = set()
        for part in text.lower().split(","):
            found.update(self._part(part, text))
        if self.name == "day of week":
            found = {day % 7 for day in found}  # 7 is Sunday too
        return frozenset(found)

    def _part(self, part: str, text: str) -> range:
        span, _, step = part.partition("/")
        every = self._number(step, text) if step else 1
        if every < 1:
            raise self._wrong(text)
        if span == "*":
            return range(self.first, self.last + 1, every)
        low, dash, high = span.partition("-")
        first = self._number(low, text)
        last = self._number(high, text) if dash else (self.last if step else first)
        upper = self.last + (self.name == "day of week")
        if not self.first <= first <= last <= upper:
            raise self._wrong(text)
        return range(first, last + 1, every)

    def _number(self, text: str, whole: str) -> int:
        if text[:3] in self.names:
            return self.names.index(text[:3]) + self.first
        if not text.isdigit():
            raise self._wrong(whole)
        return int(text)

    def _wrong(self, text: str) -> ConfigurationError:
        return ConfigurationError(
            f"{text!r} is not a valid {self.name} in a cron expression; write {self.first}-{self.last}"
        )


MINUTE = Field("minute", 0, 59)
HOUR = Field("hour", 0, 23)
DAY = Field("day of month", 1, 31)
MONTH = Field("month", 1, 12, _MONTHS)
WEEKDAY = Field("day of week", 0, 6, _DAYS)
FIELDS = (MINUTE, HOUR, DAY, MONTH, WEEKDAY)
