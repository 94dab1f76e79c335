"""What a job's message says of the slot that it is for: all that a worker needs, which may not know the timetable."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, Literal, NamedTuple

Overlap = Literal["skip", "buffer_one", "buffer_all", "cancel_other", "allow_all"]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROS = 1_000_000


class Note(NamedTuple):
    schedule: str
    """The entry's name."""
    at: float
    """Seconds since 1970: the moment that the run is for."""
    key: str
    run: str
    """The entry of the store that the run holds."""
    keep_for: float
    overlap: Overlap

    @property
    def scheduled_for(self) -> datetime:
        return _EPOCH + timedelta(microseconds=round(self.at * _MICROS))

    def as_dict(self) -> dict[str, Any]:
        return self._asdict()

    @classmethod
    def of(cls, found: Mapping[str, Any] | None) -> Note | None:
        """The note in a message; None if it has none, or one that cannot be read."""
        try:
            return None if not found else cls(**{name: found[name] for name in cls._fields})
        except (KeyError, TypeError):
            return None


def may_be_of_a_slot(job_id: str) -> bool:
    """Whether the id may have been made of a slot; other ids are random, unless somebody chose them."""
    return job_id[14:15] == "5"  # the version of the UUID
