"""The guarded functions that the tests run on real workers. What a body does is told by its caller."""

from __future__ import annotations

import os
import signal
import time
from datetime import date
from typing import Any

from rq import Queue, get_current_job
from rq.job import Job, Retry

from taskguard import Fence
from taskguard.rq import singleton_task
from tests.fencing import mover
from tests.rq import bodies


class TroubleError(Exception):
    """What a body raises that is told to fail."""


class Opaque:
    """What a caller may pass and no key can be made of: two that are equal do not show it."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _do(then: str, key: str, value: Any) -> Any:
    job = get_current_job()
    assert job is not None
    if then == "fail":
        raise TroubleError(f"{key} failed")
    if then == "fail once" and not bodies.noted("trouble", job_id=job.id):
        bodies.note("trouble")
        raise TroubleError(f"{key} failed once")
    if then == "fail once slowly" and not bodies.noted("trouble", job_id=job.id):
        bodies.note("trouble")
        try:
            raise TroubleError(f"{key} failed once")
        finally:
            time.sleep(0.5)
    if then == "return Retry once" and not bodies.noted("retried", job_id=job.id):
        bodies.note("retried")
        return Retry(max=2)
    if then == "return Retry in a second" and not bodies.noted("retried", job_id=job.id):
        bodies.note("retried")
        return Retry(max=2, interval=1)
    if then == "return Retry for ever":
        return Retry(max=1)
    if then == "replace the meta and fail once":
        job.meta = {"mine": 1}
        job.save_meta()
        if not bodies.noted("trouble", job_id=job.id):
            bodies.note("trouble")
            raise TroubleError(f"{key} failed once")
    if then == "replace the meta and die once":
        job.meta = {"mine": 1}
        job.save_meta()
        if not bodies.noted("died", job_id=job.id):
            bodies.note("died")
            os.kill(os.getpid(), signal.SIGKILL)
    if then == "take the meta away":
        job.meta = None  # type: ignore[assignment]
    if then == "enqueue itself once and refresh" and not bodies.noted("enqueued", job_id=job.id):
        bodies.note("enqueued")
        Queue(job.origin, connection=job.connection).enqueue_job(Job.fetch(job.id, job.connection))
        job.refresh()
    if then == "sleep two seconds":
        time.sleep(2)
    if then == "sleep":
        time.sleep(60)
    if then == "move money":
        died = bodies.noted("died", job_id=job.id)
        return mover.move_and_die_once(value, died=died, dying=lambda: bodies.note("died"))
    if then == "protect":
        return mover.protect(*value)
    if then == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if then == "die once" and not bodies.noted("died", job_id=job.id):
        bodies.note("died")
        os.kill(os.getpid(), signal.SIGKILL)
    if then == "return a tuple":
        return (1, date(2026, 11, 16))
    if then == "return much":
        return "x" * 100_000
    if then == "exit":
        raise SystemExit(3)
    if then == "call itself":
        return ["inner", job_(f"{key}-inner", value=value)]
    return value


def _make(name: str, **options: Any) -> Any:
    def body(
        key: str = "key",
        then: str = "return",
        gate: str | None = None,
        value: Any = None,
        fence: Fence | None = None,
    ) -> Any:
        facts = {"token": fence.token, "starts": fence.starts, "fenced": fence.idempotency_key} if fence else {}
        with bodies.working(key, value=value.value if isinstance(value, Opaque) else value, **facts):
            if gate:
                bodies.wait_at(gate)
            return _do(then, key, value)

    body.__name__ = body.__qualname__ = name  # a worker finds it by this name
    return singleton_task(**{"key": "key", "lease": 30, **options})(body)


job_ = _make("job_")
short = _make("short", lease=1.5)
stubborn = _make("stubborn", lease=1.5, on_lost="continue")
too_long = _make("too_long", lease=1, hold_at_most=1, max_starts=2)
unsure = _make("unsure", lease=1, on_lost="abort_if_unsure")
waits = _make("waits", on_conflict="wait", lease=3)
impatient = _make("impatient", on_conflict="wait", wait_up_to=1, lease=3)
more = _make("more", on_conflict="run_once_more", lease=3)
raises = _make("raises", on_conflict="raise", lease=3)
raises_at_run = _make("raises_at_run", hold="running", on_conflict="raise")
while_running = _make("while_running", hold="running", lease=3)
while_queued = _make("while_queued", hold="queued")
one_and_one = _make("one_and_one", hold="one_queued_one_running", lease=3)
refuses = _make("refuses", hold="one_queued_one_running", on_conflict={"enqueue": "skip", "run": "raise"})
reused = _make("reused", on_done="reuse", keep_for=60)
reused_success = _make("reused_success", on_done="reuse_success", keep_for=60)
once = _make("once", max_starts=1)
quick_once = _make("quick_once", max_starts=1, lease=1.5)
counted = _make("counted", enforce=False)
unguarded_store = _make("unguarded_store", store="redis://127.0.0.1:1/0?timeout=0.2", on_store_error="run_unguarded")
lost_store = _make("lost_store", store="redis://127.0.0.1:1/0?timeout=0.2", on_store_error="fail")


@singleton_task(key="key", lease=30)
async def awaited(key: str, value: Any = None, fence: Fence | None = None) -> Any:
    assert fence is not None
    with bodies.working(key, token=fence.token):
        return value


def plain(key: str = "key", then: str = "return", gate: str | None = None, value: Any = None) -> Any:
    """Not guarded at all."""
    with bodies.working(key, value=value):
        if gate:
            bodies.wait_at(gate)
        return _do(then, key, value)


def told(job: Any, connection: Any, *args: Any) -> None:
    """A callback: takes note of what it was given."""
    bodies.note("told", given=repr(args[0])[:80] if args else "")


def told_at_the_gate(job: Any, connection: Any, *args: Any) -> None:
    """A callback that takes as long as a gate is shut."""
    bodies.note("telling")
    bodies.wait_at("callback")
