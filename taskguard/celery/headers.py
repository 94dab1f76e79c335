"""The envelope in Celery's headers, taskguard's other headers, and a call before it is published.

Celery keeps custom headers through retries, so every delivery of a job has the same envelope. The attempt is not part
of it: it belongs to one delivery, the worker's parent process makes it, and it never leaves the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timezone, tzinfo
from math import ceil
from typing import Any, NamedTuple

from taskguard.engine.envelope import WIRE_NAMES, Envelope
from taskguard.protocol.names import LONGEST

PREFIX = "taskguard_"
ATTEMPT = "taskguard_attempt"
"""The attempt of this delivery, from the worker's parent process to the child."""
EVENTS = "taskguard_events"
"""Whether the worker sends Celery's events: the child does not know."""
IDEMPOTENCY_KEY = "taskguard_idempotency_key"
SLOT = "taskguard_slot"
CALL = "taskguard_call"
SERIALIZER = "taskguard_serializer"
"""The serializer of this message: a deferred message uses the same one."""
AS_IS = "taskguard_as_is"
"""An option of a call that the guard itself makes: it is published without a claim."""
LATEST = LONGEST / 2
"""Seconds: the longest delay that counts; some callers write an eta that means "never"."""
_AWAITED = ("link", "link_error", "chain", "chord")
"""The options that continue after the call."""
_ITS_OWN = (*_AWAITED, "group_id", "group_index", "root_id", "parent_id", "eta", "countdown", "expires")
ID = "taskguard_id"
RESCUED = "taskguard_rescued"
"""How often this message was redelivered because its worker went silent: see `orphans.py`."""
_LOCAL = (ATTEMPT, EVENTS, SERIALIZER, RESCUED)
_NAMES = [(name, PREFIX + WIRE_NAMES.get(name, name)) for name in Envelope._fields]
_NONE = Envelope()


def envelope_in(headers: Mapping[str, Any] | None, task_id: str | None) -> Envelope:
    """The envelope of the job *task_id*; for a new call, only the caller's own idempotency key."""
    if not headers or not isinstance(headers, Mapping):  # a caller may send a header called "headers"
        return _NONE
    if not task_id or headers.get(ID) != task_id:
        return Envelope(idempotency_key="" if headers.get(ID) else headers.get(IDEMPOTENCY_KEY) or "")
    return Envelope(**{name: headers[header] for name, header in _NAMES if headers.get(header)})


def with_envelope(headers: Mapping[str, Any] | None, envelope: Envelope) -> dict[str, Any]:
    """*headers* with this envelope in place of an earlier one."""
    ours = {header: value for (_, header), value in zip(_NAMES, envelope, strict=True) if value}
    if not headers:
        return ours
    return {**{name: value for name, value in headers.items() if not name.startswith(PREFIX)}, **ours}


def without_local(headers: Mapping[str, Any]) -> dict[str, Any]:
    """*headers* without those of one delivery."""
    return {name: value for name, value in headers.items() if name not in _LOCAL}


# -- a call ------------------------------------------------------------------------------------------------------


class Call(NamedTuple):
    send: Callable[..., Any]
    """The app's own `send_task`."""
    name: str
    args: Any
    kwargs: Any
    options: dict[str, Any]

    @property
    def envelope(self) -> Envelope:
        return envelope_in(self.options.get("headers"), self.options.get("task_id"))

    def with_(self, envelope: Envelope) -> Call:
        return self._replace(options={**self.options, "headers": with_envelope(self.options.get("headers"), envelope)})

    @property
    def is_linked(self) -> bool:
        """Whether callbacks, a chain or a chord continue after it."""
        options = self.options
        return bool(options.get("link") or options.get("link_error") or options.get("chain") or options.get("chord"))

    def publish(self) -> Any:
        return self.send(self.name, self.args, self.kwargs, **self.options)

    def publish_as(self, task_id: str, envelope: Envelope) -> Any:
        headers = with_envelope(self.options.get("headers"), envelope)
        options = {**self.options, "task_id": task_id, "headers": headers}
        return self.send(self.name, self.args, self.kwargs, **options)

    def publish_for(self, task_id: str, envelope: Envelope, delay: float) -> None:
        """Publish the same work under the holder's id, without what is linked to this call."""
        others = {name: value for name, value in self.options.items() if name not in _ITS_OWN}
        if delay > 0:
            others["countdown"] = ceil(delay)  # whole seconds: if RabbitMQ itself delays, it refuses less than one
        self._replace(options=others).publish_as(task_id, envelope)

    def delay(self, zone: tzinfo) -> float:
        """Seconds until it may start. A moment without a time zone is in the app's *zone*."""
        if self.options.get("eta"):
            return min(LATEST, max(0.0, _seconds_until(self.options["eta"], zone)))
        return min(LATEST, max(0.0, float(self.options.get("countdown") or 0)))

    def waits_for(self, seconds: float, zone: tzinfo) -> float:
        """How long its queued entry waits for a worker: *seconds*, but not past `expires` of the message."""
        expires = self.options.get("expires")
        return seconds if not expires else min(seconds, max(1.0, _seconds_until(expires, zone)))


def _seconds_until(moment: Any, zone: tzinfo) -> float:
    if isinstance(moment, (int, float)):
        return float(moment)
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment.replace("Z", "+00:00"))
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone)
    return float((moment - datetime.now(timezone.utc)).total_seconds())
