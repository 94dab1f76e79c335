"""The application that beats and workers of these tests load. The environment holds its settings and its timetable."""

from __future__ import annotations

import json
import os
import time
import uuid
from functools import cached_property
from pathlib import Path
from typing import Any

from celery import Celery
from celery.schedules import crontab

from taskguard import Event, Fence, current_fence
from taskguard.celery import install, singleton_task
from taskguard.schedule.entry import Slot
from tests.forkserver import AHEAD
from tests.ledger import append

ENVIRONMENT = "TASKGUARD_TEST_SCHEDULE"


def set_clock_ahead(seconds: float) -> None:
    # Not by libfaketime: under it Python 3.11 cannot sleep (clock_nanosleep is refused), or does not wake.
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + seconds
    time.time_ns = lambda: real_ns() + round(seconds * 1_000_000_000)


if AHEAD in os.environ:
    set_clock_ahead(float(os.environ[AHEAD]))

conf: dict[str, Any] = json.loads(os.environ.get(ENVIRONMENT, "{}"))
if conf.pop("bite", False):  # jobs of a slot are not known by their ids: what is about safety must fail then
    Slot.job_id = cached_property(lambda slot: str(uuid.uuid4()))
    Slot.job_id.__set_name__(Slot, "job_id")
ledger = Path(conf.pop("ledger", os.devnull))
django = conf.pop("django", None)
sentry_dsn = conf.pop("sentry_dsn", None)


def schedule_of(said: Any) -> Any:
    return crontab(**said) if isinstance(said, dict) else float(said)


def listen(event: Event) -> None:
    if event.kind.startswith("slot"):
        append(ledger, {"what": event.kind, "entry": event.key, "job": event.owner, "detail": event.detail})


if django:  # its scheduler keeps entries in this database
    from tests.django_project import configure

    configure(django)

if sentry_dsn:
    import sentry_sdk
    from sentry_sdk.integrations.celery import CeleryIntegration

    sentry_sdk.init(sentry_dsn, integrations=[CeleryIntegration(monitor_beat_tasks=True)])

app = Celery("schedule")
app.conf.update(conf)
app.conf.beat_schedule = {
    name: {**entry, "schedule": schedule_of(entry["schedule"])} for name, entry in conf.get("beat_schedule", {}).items()
}
if conf.get("taskguard_store"):
    app.conf.taskguard_listeners = [listen]
    install(app)


def note(what: str, fence: Fence | None, **facts: Any) -> None:
    when = fence.scheduled_for if fence else None
    append(
        ledger,
        {
            "what": what,
            "entry": fence.schedule if fence else None,
            "slot": when.timestamp() if when else None,
            "starts": fence.starts if fence else None,
            "job": fence.owner if fence else None,
            "key": fence.idempotency_key if fence else None,
            "at": time.time(),
            "pid": os.getpid(),
            **facts,
        },
    )


@singleton_task(app, shared=False, name="tick", lease=3, max_starts=50)
def tick(fence: Fence, seconds: float = 0.0, **_: Any) -> None:
    note("start", fence)
    time.sleep(seconds)
    note("end", fence)


def succeeds_at_its_second_try(task: Any) -> None:
    note("start", current_fence(), retries=task.request.retries)
    if not task.request.retries:
        raise task.retry(countdown=0.2)
    note("end", current_fence())


@app.task(shared=False, name="flaky", bind=True, max_retries=5)
def flaky(self: Any) -> None:
    succeeds_at_its_second_try(self)


@singleton_task(app, shared=False, name="guarded_flaky", bind=True, max_retries=5)
def guarded_flaky(self: Any) -> None:
    succeeds_at_its_second_try(self)


def work_for(seconds: float = 0.0, **facts: Any) -> None:
    fence = current_fence()
    note("start", fence, **facts)
    time.sleep(seconds)
    note("end", fence)


plain = app.task(shared=False, name="plain", acks_late=True)(work_for)
returned = app.task(shared=False, name="returned", acks_late=True, reject_on_worker_lost=True)(work_for)
early = app.task(shared=False, name="early", acks_late=False)(work_for)


@app.task(shared=False, name="broken")
def broken() -> None:
    note("start", current_fence())
    raise ValueError("as it was told to")
