"""Functions that a cron runs: they write down which slot they are for."""

from __future__ import annotations

import os
from typing import Any

from rq.job import Retry

from taskguard import Fence, current_fence
from taskguard.rq import singleton_task
from tests.rq import bodies


def _write(name: str, fence: Fence | None, **facts: Any) -> None:
    at = fence.scheduled_for.timestamp() if fence and fence.scheduled_for else None
    starts = fence.starts if fence else None
    bodies.note("ran", name=name, slot=at, starts=starts, schedule=fence.schedule if fence else None, **facts)


def plain(name: str, then: str = "") -> Retry | None:
    """Knows nothing of a guard."""
    _write(name, current_fence())
    if then == "retry" and not bodies.noted("retried"):
        bodies.note("retried")
        return Retry(max=1)
    if then == "wait":
        bodies.wait_at("gate")
    if then == "die":
        os.kill(os.getpid(), 9)
    if then == "fail":
        raise RuntimeError(name)
    bodies.note("end", name=name)
    return None


def plain_with_fence(name: str, fence: Fence) -> None:
    _write(name, fence, key=fence.idempotency_key)


@singleton_task(key="name", lease=20)
def guarded(name: str, then: str = "", *, fence: Fence) -> None:
    _write(name, fence, key=fence.idempotency_key)
    if then == "wait":
        bodies.wait_at("gate")


@singleton_task(key="name", hold="running", on_conflict="wait", lease=2)
def brief(name: str, then: str = "", *, fence: Fence) -> str:
    _write(name, fence)
    if then == "wait":
        bodies.wait_at("gate")
    return "done"
