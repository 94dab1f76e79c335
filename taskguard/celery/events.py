"""The guard's decisions as Celery events: `celery events` and Flower show duplicates as they show failures."""

from __future__ import annotations

import threading
from typing import Any
from weakref import proxy

from celery import Celery

from taskguard.celery.headers import EVENTS
from taskguard.celery.internals import get_current_worker_task
from taskguard.events import Event, Listener
from taskguard.keys.maker import space_of

SENT = frozenset({"duplicate", "reused", "took_over", "refused", "wait_timeout", "too_many_starts"})


def event_sender(app: Celery) -> Listener:
    """A listener for the app's guard. It sends `task-duplicate`, `task-reused` … if the app sends events at all."""
    weak_app = proxy(app)  # the guard's threads hold its listeners, and must not keep the app alive

    def send(event: Event) -> None:
        if event.kind not in SENT:
            return
        task = get_current_worker_task()
        if task is not None and task.request.id == event.owner:
            if getattr(task.request, EVENTS, False):
                task.send_event(_name(event), name=task.name, **_facts(event))
        elif event.kind == "duplicate" and weak_app.conf.task_send_sent_event:
            with weak_app.events.default_dispatcher() as dispatcher:
                name = getattr(_called, "name", "") or space_of(event.key)
                dispatcher.send(_name(event), uuid=event.owner, name=name, **_facts(event))

    return send


class Calling:
    """While the block runs, this thread publishes a call of that task, and the guard's events are about it."""

    __slots__ = ("_before", "_name")

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        self._before = getattr(_called, "name", "")
        _called.name = self._name

    def __exit__(self, *_: object) -> None:
        _called.name = self._before


_called = threading.local()
"""The name of the task being called: an event of the guard has only the key, but monitors show names."""


def _name(event: Event) -> str:
    return f"task-{event.kind.replace('_', '-')}"


def _facts(event: Event) -> dict[str, Any]:
    return {
        "key": event.key,
        "holder": event.holder,
        "holder_state": event.state,
        "since": event.since,
        "token": event.token,
    }
