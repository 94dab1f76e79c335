"""The application of a rolling change, for workers, beats and callers of both releases."""

from __future__ import annotations

import json
import os
from typing import Any

from celery import Celery

from taskguard import Fence, current_fence
from taskguard.celery import install, singleton_task
from tests.upgrade import bodies

app = Celery("upgrade")
app.conf.update(json.loads(os.environ.get(bodies.SETTINGS, "{}")))
install(app)

OPTIONS: dict[str, Any] = {"lease": 2, "max_starts": 100, "shared": False, "bind": True}


@singleton_task(app, name="pay", key="order", on_done="reuse_success", keep_for=900, max_retries=50, **OPTIONS)
def pay(self: Any, order: str, retries: int = 0, *, fence: Fence) -> str:
    """Once for each order, however often it is called."""
    is_last = self.request.retries >= retries
    bodies.work("pay", order, self.request.id, fence, effect=is_last)
    if not is_last:
        raise self.retry(countdown=0.1)
    return order


@singleton_task(app, name="refresh", key="page", **OPTIONS)
def refresh(self: Any, page: str, *, fence: Fence) -> str:
    """Once for each job; a call that comes while one is queued or running is a duplicate."""
    bodies.work("refresh", page, self.request.id, fence)
    return page


@singleton_task(app, name="append", key="file", hold="running", on_conflict="wait", **OPTIONS)
def append(self: Any, file: str, *, fence: Fence) -> str:
    """Every call runs, one at a time."""
    bodies.work("append", file, self.request.id, fence)
    return file


@singleton_task(app, name="sync", key="page", hold="one_queued_one_running", **OPTIONS)
def sync(self: Any, page: str, *, fence: Fence) -> str:
    """Each call is followed by a run that begins after it."""
    bodies.work("sync", page, self.request.id, fence)
    return page


@singleton_task(app, name="build", key="page", on_conflict="run_once_more", **OPTIONS)
def build(self: Any, page: str, number: int, *, fence: Fence) -> str:
    """Likewise."""
    bodies.work("build", page, self.request.id, fence)
    return page


@singleton_task(app, name="total", key="number", **OPTIONS)
def total(self: Any, values: list[str], number: str, *, fence: Fence) -> int:
    """The callback of a chord."""
    bodies.work("total", number, self.request.id, fence)
    return len(values)


@singleton_task(app, name="tick", **OPTIONS)
def tick(self: Any, *, fence: Fence) -> None:
    bodies.work("tick", "tick", self.request.id, fence, seconds=0.01)


@app.task(name="plain_tick", shared=False, bind=True, acks_late=True)
def plain_tick(self: Any) -> None:
    fence = current_fence()
    assert fence is not None
    bodies.work("plain_tick", "plain_tick", self.request.id, fence, seconds=0.01)
