"""The envelope in Celery's headers, and what else of ours a message has there.

Celery keeps custom headers through retries, so the envelope is the same for every delivery of a job. The attempt is not
part of it: it belongs to one delivery, is made by the worker's parent process, and never leaves the worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskguard.engine.envelope import WIRE_NAMES, Envelope

PREFIX = "taskguard_"
ATTEMPT = "taskguard_attempt"
"""Of this delivery alone: from the worker's parent process to the child."""
EVENTS = "taskguard_events"
"""Whether the worker sends Celery's events: the child cannot know."""
IDEMPOTENCY_KEY = "taskguard_idempotency_key"
SLOT = "taskguard_slot"
CALL = "taskguard_call"
SERIALIZER = "taskguard_serializer"
"""How the message in hand was written: it is deferred in the same way."""
ID = "taskguard_id"
RESCUED = "taskguard_rescued"
"""How often this very message was given back after its worker went silent: see `orphans.py`."""
_LOCAL = (ATTEMPT, EVENTS, SERIALIZER, RESCUED)
_NAMES = [(name, PREFIX + WIRE_NAMES.get(name, name)) for name in Envelope._fields]
_NONE = Envelope()


def envelope_in(headers: Mapping[str, Any] | None, task_id: str | None) -> Envelope:
    """That of the job *task_id*; of a call that has none yet, at most the caller's own idempotency key."""
    if not headers or not isinstance(headers, Mapping):  # a caller may send one that is called "headers"
        return _NONE
    if not task_id or headers.get(ID) != task_id:
        return Envelope(idempotency_key="" if headers.get(ID) else headers.get(IDEMPOTENCY_KEY) or "")
    return Envelope(**{name: headers[header] for name, header in _NAMES if headers.get(header)})


def with_envelope(headers: Mapping[str, Any] | None, envelope: Envelope) -> dict[str, Any]:
    """*headers* with this envelope in place of whatever was there of one."""
    ours = {header: value for (_, header), value in zip(_NAMES, envelope, strict=True) if value}
    if not headers:
        return ours
    return {**{name: value for name, value in headers.items() if not name.startswith(PREFIX)}, **ours}


def without_local(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Without what belongs to one delivery."""
    return {name: value for name, value in headers.items() if name not in _LOCAL}
