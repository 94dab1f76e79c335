"""A call of a task, on its way to the broker."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone, tzinfo
from math import ceil
from typing import Any, NamedTuple

from taskguard.celery.headers import envelope_in, with_envelope
from taskguard.engine.envelope import Envelope
from taskguard.protocol.names import LONGEST

AS_IS = "taskguard_as_is"
"""An option of a call that the guard itself makes: it is published and nobody is asked."""
LATEST = LONGEST / 2
"""Seconds: what is to begin even later, as some write "never", is kept no longer than this."""
_AWAITED = ("link", "link_error", "chain", "chord")
"""What goes on when a call has ended."""
_ITS_OWN = (*_AWAITED, "group_id", "group_index", "root_id", "parent_id", "eta", "countdown", "expires")


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
        """Whether something goes on when it has ended."""
        return any(self.options.get(name) for name in _AWAITED)

    def publish(self) -> Any:
        return self.send(self.name, self.args, self.kwargs, **self.options)

    def publish_as(self, task_id: str, envelope: Envelope) -> Any:
        headers = with_envelope(self.options.get("headers"), envelope)
        options = {**self.options, "task_id": task_id, "headers": headers}
        return self.send(self.name, self.args, self.kwargs, **options)

    def publish_for(self, task_id: str, envelope: Envelope, delay: float) -> None:
        """The same work under the holder's id. Who waits for this call does not wait for that one."""
        others = {name: value for name, value in self.options.items() if name not in _ITS_OWN}
        if delay > 0:
            others["countdown"] = ceil(delay)  # whole seconds: where RabbitMQ itself delays, less than one is refused
        self._replace(options=others).publish_as(task_id, envelope)

    def delay(self, zone: tzinfo) -> float:
        """Seconds until it may start. A moment without a time zone is in the app's *zone*."""
        if self.options.get("eta"):
            return min(LATEST, max(0.0, _seconds_until(self.options["eta"], zone)))
        return min(LATEST, max(0.0, float(self.options.get("countdown") or 0)))

    def waits_for(self, seconds: float, zone: tzinfo) -> float:
        """How long its queued entry waits for a worker: *seconds*, but not past the end of the message."""
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
