"""The application that workers load, and that a fleet loads anew in the test process.

The environment holds its settings. Settings and tasks are thus made as in any project: at import.
"""

from __future__ import annotations

import json
import os

from celery import Celery

from taskguard.celery import singleton_task
from tests.celery import accidents, bodies
from tests.celery.haste import make_haste
from tests.celery.jobs import make_jobs
from tests.celery.settings import BITE, ENVIRONMENT

make_haste()

app = Celery("tests")
app.conf.update(json.loads(os.environ.get(ENVIRONMENT, "{}")))


@app.task
def work(key: str = "key", gate: str | None = None) -> str:
    """Take note, and wait at *gate* if there is one."""
    with bodies.working(key):
        if gate:
            bodies.wait_at(gate)
    return key


@app.task
def total(values: list[int]) -> int:
    with bodies.working("total"):
        return sum(values)


@app.task
def told(*args: object) -> object:
    """A callback or an errback: takes note of what it was given."""
    bodies.note("told", given=[repr(arg) for arg in args])
    return args[0] if args else None


@singleton_task(app, shared=False, name="unfenced", key="key")
def unfenced(key: str, then: str = "return", value: object = None) -> object:
    with bodies.working(key):
        return value


jobs = {**make_jobs(app, enforce=not app.conf.get(BITE)), "unfenced": unfenced}
globals().update(jobs)

accidents.prepare(app)
