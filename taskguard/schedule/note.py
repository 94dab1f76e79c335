"""What a job's message says of the slot that it is for: all that a worker needs, which may not know the timetable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Literal

Overlap = Literal["skip", "buffer_one", "buffer_all", "cancel_other", "allow_all"]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROS = 1_000_000


@dataclass(frozen=True)
class Note:
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
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def of(cls, found: Mapping[str, Any] | None) -> Note | None:
        """The note in a message; None if it has none, or one that cannot be read."""
        try:
            return None if not found else cls(**{name: found[name] for name in cls.__dataclass_fields__})
        except (KeyError, TypeError):
            return None


def may_be_of_a_slot(job_id: str) -> bool:
    """Whether the id may have been made of a slot; other ids are random, unless somebody chose them."""
    return job_id[14:15] == "5"  # the version of the UUID
