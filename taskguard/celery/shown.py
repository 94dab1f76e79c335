"""How a message shows its arguments to logs and monitors.

Celery makes these texts for every message, at a good part of what a publish costs it. Made by the same code while the
store's answer is on its way, they cost a guarded call nothing.
"""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.app.amqp import AMQP
from celery.signals import before_task_publish

from taskguard.celery.call import Call

_TEXTS = ("argsrepr", "kwargsrepr")


def with_texts(call: Call, app: Celery) -> Call:
    """The call with what Celery would show of its arguments, where its caller did not say."""
    make = app.amqp.create_task_message
    if getattr(make, "__func__", None) is not AMQP.as_task_v2:
        return call  # an app that makes its messages in its own way may show less, and has to be asked once only
    headers = make("", call.name, call.args, call.kwargs).headers
    return call._replace(options={**{name: headers[name] for name in _TEXTS}, **call.options})


def keep_out_of_properties(task: str) -> None:
    """Celery sends every option of a call among the message's properties too, where nobody reads these."""
    before_task_publish.connect(_drop, sender=task)


def _drop(properties: dict[str, Any], **_: Any) -> None:
    for name in _TEXTS:
        properties.pop(name, None)
