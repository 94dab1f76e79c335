"""The slot in a job's message: all that a worker needs, since it may not know the timetable."""

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
    """The moment that the run is for, in seconds since 1970."""
    key: str
    run: str
    """The store entry that the run holds."""
    keep_for: float
    overlap: Overlap

    @property
    def scheduled_for(self) -> datetime:
        return _EPOCH + timedelta(microseconds=round(self.at * _MICROS))

    def as_dict(self) -> dict[str, Any]:
        return self._asdict()

    @classmethod
    def of(cls, found: Mapping[str, Any] | None) -> Note | None:
        """The note in a message; None if it has none, or an unreadable one."""
        try:
            return None if not found else cls(**{name: found[name] for name in cls._fields})
        except (KeyError, TypeError):
            return None


def may_be_of_a_slot(job_id: str) -> bool:
    """Whether the id may be derived from a slot. Other ids are random, unless a caller chose them."""
    return job_id[14:15] == "5"  # the version of the UUID
