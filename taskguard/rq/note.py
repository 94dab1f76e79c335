"""What the guard knows of a job beside what RQ does; it travels with the job, in a field of its own: `noted.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

IDEMPOTENCY_KEY = "idempotency_key"
NAMESPACE = "namespace"
"""In the note of a slot: where its entry is, in the queue's own Redis."""


@dataclass(frozen=True, slots=True)
class Note:
    """The guard's part of a job."""

    made: str = ""
    """When the job was made that it belongs to: an id can be given to another job, by a queue that writes no note."""
    run: str = ""
    """Tells apart the calls that were given one job id by their callers."""
    key: str = ""
    """The key, fixed when the call was made."""
    place: str = ""
    """The entry that holds the job's place in the queue, where that is not the one its function's `hold` says."""
    payload: str = ""
    """A digest of all arguments, where two calls of one key may differ."""
    idempotency_key: str = ""
    """The caller's own, if it gave one."""
    queue_class: str = ""
    """Where a function is guarded by its name: the class of its caller's queue, whose patterns say so."""
    store: str = ""
    """The store that the caller asked, by its name; and when."""
    at: float = 0.0
    join: str = ""
    """The twin whose outcome this job ends with."""
    since: float = 0.0
    """When it first had to wait for another job."""
    floor: int = 0
    """The highest token that a resource refused it with: the next one is higher."""
    after_outage: bool = False
    """It was put back because the store did not answer: who held the key then may not have been able to renew."""
    slot: Mapping[str, Any] | None = None
    """For a scheduled job: the note of its slot; see `slot.py`."""

    @property
    def is_one_of_many(self) -> bool:
        """Whether it is of a schedule whose runs keep no other out: then it has an entry of its own."""
        return (self.slot or {}).get("overlap") == "allow_all"

    @classmethod
    def read(cls, text: bytes | str | None) -> Note:
        facts = json.loads(text) if text else {}
        # A worker that cannot read a job ends; while some are upgraded, one may know less than who wrote the note.
        return cls(**{name: value for name, value in facts.items() if name in cls.__dataclass_fields__})

    def written(self) -> str:
        mine = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return json.dumps({name: value for name, value in mine.items() if value}, separators=(",", ":"))

    def with_(self, **changes: Any) -> Note:
        return replace(self, **changes)

    def as_new(self) -> Note:
        """For the next start of the job: it waits for nobody."""
        return replace(self, join="", since=0.0, after_outage=False)
