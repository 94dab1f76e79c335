"""A call of a task, on its way to the broker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from taskguard.celery.headers import Headers

AS_IS = "taskguard_as_is"
"""An option of a call that the guard itself makes: it is published and nobody is asked."""
_ABOUT_OTHERS = ("link", "link_error", "chain", "chord", "group_id", "group_index", "root_id", "parent_id")


@dataclass(frozen=True)
class Call:
    send: Callable[..., Any]
    """The app's own `send_task`."""
    name: str
    args: Any
    kwargs: Any
    options: dict[str, Any]

    @property
    def headers(self) -> Headers:
        return Headers.of(self.options.get("headers"), self.options.get("task_id"))

    def with_(self, headers: Headers | None = None, **options: Any) -> Call:
        merged = {**self.options, **options}
        if headers is not None:
            merged["headers"] = headers.within(self.options.get("headers"))
        return replace(self, options=merged)

    def for_twin(self, task_id: str, headers: Headers) -> Call:
        """The same work under its twin's id. Who waits for this call does not wait for that one."""
        others = {name: value for name, value in self.options.items() if name not in _ABOUT_OTHERS}
        return replace(self, options=others).with_(headers.with_(id=task_id).as_new(), task_id=task_id)

    def publish(self) -> Any:
        return self.send(self.name, self.args, self.kwargs, **self.options)

    @property
    def delay(self) -> float:
        """Seconds until it may start."""
        if self.options.get("eta"):
            return max(0.0, _seconds_until(self.options["eta"]))
        return max(0.0, float(self.options.get("countdown") or 0))

    def waits_for(self, queued_for: float) -> float:
        """How long its queued entry waits for a worker: past the delay, never past the end of the message."""
        seconds = queued_for + self.delay
        expires = self.options.get("expires")
        return seconds if not expires else min(seconds, max(1.0, _seconds_until(expires)))


def _seconds_until(moment: Any) -> float:
    if isinstance(moment, (int, float)):
        return float(moment)
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment.replace("Z", "+00:00"))
    now = datetime.now(timezone.utc) if moment.tzinfo else datetime.now()
    return float((moment - now).total_seconds())
