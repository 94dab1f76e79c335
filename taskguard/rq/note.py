"""What travels with a job, in `job.meta["taskguard"]`: RQ keeps a job's meta through retries and repetitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

META = "taskguard"
IDEMPOTENCY_KEY = "idempotency_key"


@dataclass(frozen=True, slots=True)
class Note:
    """The guard's part of a job's meta."""

    id: str = ""
    """Whose note this is: people pass a job's meta on to other jobs, and those are not this one."""
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
    join: str = ""
    """The twin whose outcome this job ends with."""
    since: float = 0.0
    """When it first had to wait for another job."""
    enqueueing: str = ""
    """Which enqueueing the job was of before it was put back: RQ writes down each as a new one (see `owner.py`)."""
    floor: int = 0
    """The highest token that a resource refused it with: the next one is higher."""

    @classmethod
    def of(cls, meta: Mapping[str, Any] | None, job_id: str) -> Note:
        """That of the job *job_id*; of a call that has none yet, at most the caller's own idempotency key."""
        found = (meta or {}).get(META)
        if not isinstance(found, Mapping):
            return cls()
        if found.get("id") != job_id:
            return cls() if found.get("id") else cls(idempotency_key=found.get(IDEMPOTENCY_KEY) or "")
        return cls(**{name: found[name] for name in cls.__dataclass_fields__ if found.get(name)})

    def within(self, meta: Mapping[str, Any] | None) -> dict[str, Any]:
        """*meta* with this note in place of the one that was there."""
        mine = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**(meta or {}), META: {name: value for name, value in mine.items() if value}}

    def with_(self, **changes: Any) -> Note:
        return replace(self, **changes)

    def as_new(self) -> Note:
        """For the next start of the job: it waits for nobody."""
        return replace(self, join="", since=0.0)
