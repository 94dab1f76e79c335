"""Workers that die at a chosen moment: once, and then never again."""

from __future__ import annotations

import os
import signal
from typing import Any

from celery import Celery

from tests.celery import bodies

ENVIRONMENT = "TASKGUARD_TEST_ACCIDENT"
"""The environment variable that names the moment: see `prepare`."""


def prepare(app: Celery) -> None:
    """Before a result or a failure is stored; after it, and before the acknowledgement; between claim and body.

    Or where Celery has just reserved the callback of a chord for itself, and not yet published it.
    """
    moment = os.environ.get(ENVIRONMENT)
    if moment == "before the result":
        _die_in(type(app.backend), "mark_as_done", before=True)
    elif moment == "before the failure":
        _die_in(type(app.backend), "mark_as_failure", before=True)
    elif moment == "after the result":
        _die_in(type(app.backend), "mark_as_done", before=False)
    elif moment == "before the callback of a chord":
        _die_in(type(app.amqp), "_retry_publish", before=True)
    elif moment == "after the claim":
        from taskguard.celery.delivery import CeleryDelivery

        _die_in(CeleryDelivery, "work", before=False)


def _die_in(owner: type, name: str, *, before: bool) -> None:
    original = getattr(owner, name)

    def dying(*args: Any, **options: Any) -> Any:
        if before:
            die_once()
        value = original(*args, **options)
        if not before:
            die_once()
        return value

    setattr(owner, name, dying)


def die_once() -> None:
    """The whole worker, as if its machine went."""
    if not bodies.noted("accident"):
        bodies.note("accident")
        os.killpg(os.getpgrp(), signal.SIGKILL)
