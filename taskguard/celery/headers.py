"""What travels with a message, and the names it has there.

Celery keeps custom headers through retries, so all of these are the same for every delivery of a job. The attempt is
not among them: it belongs to one delivery, is made by the worker's parent process, and never leaves the worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

PREFIX = "taskguard_"
ATTEMPT = "taskguard_attempt"
"""Of this delivery alone: from the worker's parent process to the child."""
EVENTS = "taskguard_events"
"""Whether the worker sends Celery's events: the child cannot know."""
IDEMPOTENCY_KEY = "taskguard_idempotency_key"
SLOT = "taskguard_slot"
CALL = "taskguard_call"
SERIALIZER = "taskguard_serializer"
"""How the message in hand was written: it is put back in the same way."""
_LOCAL = (ATTEMPT, EVENTS, SERIALIZER)


class Headers(NamedTuple):
    """The guard's part of a message's headers."""

    id: str = ""
    """Whose headers these are: people pass a request's headers on to other calls, and those are not this job."""
    key: str = ""
    """The key, fixed when the call was made."""
    place: str = ""
    """The entry that holds the job's place in the queue, where that is not the one its task's `hold` says."""
    payload: str = ""
    """A digest of all arguments, where two calls of one key may differ."""
    idempotency_key: str = ""
    """The caller's own, if it gave one."""
    store: str = ""
    """The identity of the store that the publisher looked at."""
    at: float = 0.0
    """When it was published first, by the publisher's clock."""
    join: str = ""
    """The twin whose outcome this job ends with."""
    copy: str = ""
    """The name of this copy of the message, once it was put back."""
    heir: str = ""
    """The queued twin whose place it takes if that one does not come."""
    rounds: int = 0
    """How often it was put back in a row."""
    since: float = 0.0
    """When it first had to wait for another job."""
    slot: Mapping[str, Any] | None = None
    """Of a scheduled job: which slot it is for (`taskguard.schedule.Note`)."""
    floor: int = 0
    """The highest token that a resource refused it with: the next one is higher."""
    after_outage: bool = False
    """It was put back because the store did not answer: who held the key then may not have been able to renew."""
    call: str = ""
    """Which call of the id this is, where it may not be the first: what is linked to each hears of the end once."""
    unanswered: bool = False
    """It was put back because its job had ended, and whoever waits for that may just have been being told."""

    @classmethod
    def of(cls, headers: Mapping[str, Any] | None, task_id: str | None) -> Headers:
        """Those of the job *task_id*; of a call that has none yet, at most the caller's own idempotency key."""
        if not headers or not isinstance(headers, Mapping):  # a caller may send one that is called "headers"
            return _NONE
        if not task_id or headers.get(PREFIX + "id") != task_id:
            own = "" if headers.get(PREFIX + "id") else headers.get(IDEMPOTENCY_KEY) or ""
            return cls(idempotency_key=own)
        return cls(**{name: headers[header] for name, header in _NAMES if headers.get(header)})

    def within(self, headers: Mapping[str, Any] | None) -> dict[str, Any]:
        """*headers* with this part in place of whatever was there of it."""
        ours = {header: value for (_, header), value in zip(_NAMES, self, strict=True) if value}
        return {**without_ours(headers), **ours} if headers else ours

    def with_(self, **changes: Any) -> Headers:
        return self._replace(**changes)

    def as_new(self) -> Headers:
        """For the next message of the job: it was not put back, waits for nobody and is no copy."""
        return self._replace(join="", copy="", heir="", rounds=0, since=0.0, after_outage=False, unanswered=False)


_NAMES = [(name, PREFIX + name) for name in Headers._fields]
_NONE = Headers()


def without_ours(headers: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (headers or {}).items() if not name.startswith(PREFIX)}


def without_local(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Without what belongs to one delivery."""
    return {name: value for name, value in headers.items() if name not in _LOCAL}
