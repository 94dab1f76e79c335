"""An app whose tasks have names with a short form: `-A tests.cli.shop`."""

from __future__ import annotations

import os

from celery import Celery

from taskguard.celery import singleton_task

app = Celery("shop", broker="memory://", set_as_current=False)
app.conf.taskguard_store = os.environ.get("TASKGUARD_STORE", "memory://")
app.conf.taskguard_namespace = os.environ.get("TASKGUARD_NAMESPACE", "taskguard")


@singleton_task(app, shared=False, name="shop.charge", key="order")
def charge(order: int) -> None: ...


@singleton_task(app, shared=False, name="shop.refund")
def refund(order: int) -> None: ...


@singleton_task(app, shared=False, name="depot.refund")
def refund_parcel(order: int) -> None: ...


@app.task(shared=False, name="shop.greet")
def greet() -> None: ...
