"""One function that both Celery and RQ run, with one space of keys."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

import taskguard.celery
import taskguard.rq
from taskguard import Fence
from tests.rq import bodies

URL = "TASKGUARD_TEST_REDIS"
OPTIONS: dict[str, Any] = {"key": "order_id", "key_space": "billing", "lease": 10}

url = os.environ.get(URL, "redis://127.0.0.1:1/0")
app = Celery("shared", broker=url, backend=url)
app.conf.update(taskguard_store=url, worker_prefetch_multiplier=1, broker_connection_retry_on_startup=True)


@taskguard.rq.singleton_task(**OPTIONS)
def charge(order_id: str, gate: str | None = None, value: Any = None, fence: Fence | None = None) -> Any:
    assert fence is not None
    with bodies.working(order_id, token=fence.token, value=value, fenced_by=fence.owner):
        if gate:
            bodies.wait_at(gate)
        return value


@taskguard.rq.singleton_task(**OPTIONS)
def refund(order_id: str, gate: str | None = None, value: Any = None) -> Any:
    return value


same_on_celery = taskguard.celery.singleton_task(app, name="tests.rq.shared.charge", **OPTIONS)(charge)
"""By the name that it has at RQ."""
refund_on_celery = taskguard.celery.singleton_task(app, name="tests.rq.shared.refund", **OPTIONS)(refund)
charge_on_celery = taskguard.celery.singleton_task(app, name="charge", **OPTIONS)(charge)
