"""The texts by which a message shows its arguments to logs and monitors.

Celery makes these texts for every message, which is a good part of the cost of a publish. A guarded call makes them
with the same code while it waits for the store's answer, so they cost it nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import Celery
from celery.app.amqp import AMQP
from celery.app.routes import MapRoute, Router
from celery.signals import before_task_publish

from taskguard.celery.headers import Call

TEXTS = ("argsrepr", "kwargsrepr")


def with_texts(call: Call, app: Celery) -> Call:
    """The call with the texts that Celery would make, unless its caller gave them."""
    amqp = app.amqp
    make = amqp.create_task_message  # looked up once: Celery's cached properties cost some microseconds each time
    if not _is_made_by_celery_alone(call, amqp, make):
        return call
    headers = make("", call.name, call.args, call.kwargs).headers
    return call._replace(options={**{name: headers[name] for name in TEXTS}, **call.options})


def _is_made_by_celery_alone(call: Call, amqp: AMQP, make: Callable[..., Any]) -> bool:
    """Whether no code of the app takes part: it may hide secrets, and must run only once, when the message is made."""
    router = amqp.router
    return (
        getattr(call.send, "__func__", None) is Celery.send_task
        and getattr(make, "__func__", None) is AMQP.as_task_v2
        and "task_type" in call.options  # else Celery has not added the task's options yet
        and not call.options.get("router")
        and not call.options.get("route_name")
        and type(router) is Router
        and all(type(route) is MapRoute for route in router.routes)
        and not any(name in (router.lookup_route(call.name) or ()) for name in TEXTS)
    )


def keep_out_of_properties(task: str) -> None:
    """Remove the texts from the message's properties, where Celery puts every option too and nothing reads these."""
    before_task_publish.connect(_drop, sender=task)


def _drop(properties: dict[str, Any], **_: Any) -> None:
    for name in TEXTS:
        properties.pop(name, None)
