"""An app whose broker, result backend and store are this process: what a call does, without a worker."""

from __future__ import annotations

import json
from itertools import count
from types import SimpleNamespace
from typing import Any

from celery import Celery
from celery.app.trace import build_tracer

from taskguard import StoreUnavailableError
from taskguard.celery import singleton_task
from taskguard.stores.memory import MemoryStore

_numbers = count()


def make_app(**conf: Any) -> Celery:
    app = Celery(f"app{next(_numbers)}", set_as_current=False)
    own = {
        "broker_url": "memory://",
        "result_backend": "cache+memory://",
        "task_default_queue": f"queue{next(_numbers)}",
        "taskguard_store": MemoryStore(),
    }
    app.conf.update({**own, **conf})
    return app


def guarded(app: Celery, **options: Any) -> Any:
    """`singleton_task` for this app alone: Celery would share it with the apps of all other tests."""
    return singleton_task(app, shared=False, **options)


def store_of(app: Celery) -> Any:
    return app._taskguard.guard.store


def live(app: Celery) -> list[Any]:
    """What is queued or running, but for what the guard keeps for itself."""
    found = store_of(app).scan()
    return [entry for entry in found if entry.state in ("queued", "running") and not entry.key.startswith("taskguard:")]


def sent(app: Celery) -> list[Any]:
    """The messages in the app's queue, which is empty afterwards."""
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue(app.conf.task_default_queue)
        found = []
        while True:
            try:
                message = queue.get_nowait()
            except queue.Empty:
                return found
            message.ack()
            found.append(message)


def ids(messages: list[Any]) -> list[str]:
    return [message.headers["id"] for message in messages]


def deliver(task: Any, task_id: str, *args: Any, request: Any = None, **headers: Any) -> Any:
    """What a worker's child does with a message."""
    delivery_info = {"exchange": "", "routing_key": task.app.conf.task_default_queue}
    facts = {"id": task_id, "task": task.name, "retries": 0, "is_eager": False, "delivery_info": delivery_info}
    ours = {f"taskguard_{name}": value for name, value in headers.items()}
    facts = {**facts, **(request or {}), **ours, "args": args}
    return build_tracer(task.name, task, app=task.app)(task_id, args, {}, facts)


def deliver_message(app: Celery, message: Any) -> Any:
    """What a worker's child does with a message as it is in the queue, whatever its `eta`."""
    task, (args, kwargs, embed) = app.tasks[message.headers["task"]], message.payload
    delivery_info = {"exchange": "", "routing_key": app.conf.task_default_queue}
    facts = {"retries": 0, "is_eager": False, "delivery_info": delivery_info, **message.headers, **(embed or {})}
    facts |= {"args": args, "kwargs": kwargs}
    return build_tracer(task.name, task, app=app)(message.headers["id"], args, kwargs, facts)


def request_of(task: Any, message: Any) -> Any:
    """What a worker's parent process makes of a message."""
    delivered = SimpleNamespace(
        headers={"lang": "py", **message.headers},
        payload=message.payload,
        body=json.dumps(message.payload).encode(),
        content_type="application/json",
        content_encoding="utf-8",
        delivery_info={},
        properties={"reply_to": "", "correlation_id": message.headers["id"]},
        ack_log_error=lambda *_: None,
        reject_log_error=lambda *_: None,
    )
    nothing = lambda *_: None  # noqa: E731
    return task.Request(delivered, app=task.app, task=task, on_ack=nothing, on_reject=nothing)


def ours_of(message: Any) -> dict[str, Any]:
    """The guard's headers, as `deliver` takes them."""
    return {name[10:]: value for name, value in message.headers.items() if name.startswith("taskguard_")}


def goes_away_after(store: Any, verb: str, times: int) -> None:
    """The store answers so many times, and then no more."""
    answered = 0
    original = getattr(store, verb)

    def ask(*args: Any, **options: Any) -> Any:
        nonlocal answered
        answered += 1
        if answered > times:
            raise StoreUnavailableError("store", "gone")
        return original(*args, **options)

    setattr(store, verb, ask)
