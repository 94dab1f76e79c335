"""The guarded tasks that the tests run on real workers. What a body does is told by its caller."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from celery import Celery, chain
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

from taskguard import Fence
from taskguard.celery import singleton_task
from tests.celery import bodies
from tests.fencing import mover


class TroubleError(Exception):
    """What a body raises that is told to fail."""


def make_jobs(app: Celery, *, enforce: bool) -> dict[str, Any]:
    """Guarded tasks by name. All have one key argument and one body, and differ in their options."""

    def make(name: str, **options: Any) -> Any:
        options = {
            "key": "key",
            "bind": True,
            "name": name,
            "lease": 30,
            "shared": False,
            "enforce": enforce,
            **options,
        }

        @singleton_task(app, **options)
        def job(
            self: Any,
            key: str = "key",
            then: str = "return",
            gate: str | None = None,
            value: Any = None,
            fence: Fence = None,  # type: ignore[assignment]
        ) -> Any:
            with bodies.working(key, token=fence.token, starts=fence.starts, retries=self.request.retries, value=value):
                if gate:
                    bodies.wait_at(gate)
                return _do(self, then, key, value)

        return job

    return {
        "job": make("job"),
        "short": make("short", lease=1.5),
        "auto": make(
            "auto", autoretry_for=(TroubleError,), max_retries=1, default_retry_delay=0, retry_kwargs={"countdown": 0}
        ),
        "retried": make(
            "retried", autoretry_for=(Exception,), max_retries=1, default_retry_delay=0, retry_kwargs={"countdown": 0}
        ),
        "waits": make("waits", on_conflict="wait"),
        "impatient": make("impatient", on_conflict="wait", wait_up_to=1),
        "more": make("more", on_conflict="run_once_more"),
        "raises": make("raises", on_conflict="raise"),
        "raises_at_run": make("raises_at_run", hold="running", on_conflict="raise"),
        "while_running": make("while_running", hold="running"),
        "while_queued": make("while_queued", hold="queued"),
        "one_and_one": make("one_and_one", hold="one_queued_one_running"),
        "reused": make("reused", on_done="reuse", keep_for=60),
        "reused_if_successful": make("reused_if_successful", on_done="reuse_success", keep_for=60),
        "kin": make("kin", key_space="kin"),
        "relative": make("relative", key_space="kin"),
        "unheard": make("unheard", ignore_result=True),
        "early": make("early", acks_late=False),
        "once": make("once", max_starts=1),
        "too_long": make("too_long", lease=1, hold_at_most=1, max_starts=2),
        "reused_unheard": make("reused_unheard", ignore_result=True, on_done="reuse_success", keep_for=60),
        "lingers": make("lingers", hold_at_least=3),
        "stubborn": make("stubborn", lease=1.5, on_lost="continue"),
        "requeued_on_timeout": make("requeued_on_timeout", acks_on_failure_or_timeout=False, acks_on_timeout=False),
        "retried_on_loss": make("retried_on_loss", retry_on_worker_lost=True, max_retries=1, default_retry_delay=0),
        "tracked": make("tracked", track_started=True),
        "counted": make("counted", enforce=False),
        "keyless": make("keyless", key=_no_key),
    }


def _no_key(*args: Any, **kwargs: Any) -> str:
    raise LookupError("no key for this call")


def _do(task: Any, then: str, key: str, value: Any) -> Any:
    if then == "take a moment":
        time.sleep(0.005)
    if then == "return":
        return value
    if then == "fail":
        raise TroubleError(f"{key} failed")
    if then == "ignore":
        raise Ignore
    if then == "reject":
        raise Reject("rejected")
    if then == "reject and requeue once":
        if task.request.delivery_info.get("redelivered") or _noted(task, "requeued"):
            return value
        bodies.note("requeued")
        raise Reject("later", requeue=True)
    if then == "retry once" and task.request.retries == 0:
        raise task.retry(countdown=0)
    if then == "retry slowly" and task.request.retries == 0:
        try:
            raise task.retry(countdown=0)
        finally:
            time.sleep(1)  # the clean-up under test: the next body must not start beside it
    if then == "retry for ever":
        raise task.retry(countdown=0, max_retries=1)
    if then == "retry and return" and task.request.retries == 0:
        task.retry(countdown=0, throw=False)
        return "first"
    if then == "retry in 3 seconds" and task.request.retries == 0:
        raise task.retry(countdown=3)
    if then == "retry with what cannot be written":
        raise task.retry(kwargs={"value": object()}, countdown=0)
    if then == "retry and fail" and task.request.retries == 0:
        task.retry(countdown=0, throw=False)
        raise TroubleError(f"{key} failed")
    if then == "return what cannot be written":
        return object()
    if then == "replace by a relative":
        return task.replace(task.app.tasks["relative"].s(key, value="relative"))
    if then == "replace by a chain to a relative":
        relative = task.app.tasks["relative"].si(key, value="relative")
        return task.replace(chain(task.app.tasks["tests.celery.tasks.told"].si(), relative))
    if then == "replace by itself" and task.request.retries == 0 and not _noted(task, "replaced"):
        bodies.note("replaced")
        return task.replace(task.s(key, "return", value="replaced"))
    if then == "replace by another":
        return task.replace(task.app.tasks["job"].s(f"{key}-other", value="another"))
    if then == "move money":
        return mover.move_and_die_once(value, died=_noted(task, "died"), dying=lambda: bodies.note("died"))
    if then == "protect":
        return mover.protect(*value)
    if then == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if then == "die once" and not _noted(task, "died"):
        bodies.note("died")
        os.kill(os.getpid(), signal.SIGKILL)
    if then == "clean up slowly":
        return _clean_up_slowly()
    if then == "catch the soft limit":
        try:
            time.sleep(60)
        except SoftTimeLimitExceeded:
            return "caught"
    return value


def _clean_up_slowly() -> None:
    try:
        time.sleep(60)  # until it is told to end
    finally:
        bodies.note("cleaning up")
        time.sleep(1)
        bodies.note("cleaned up")


def _noted(task: Any, what: str) -> bool:
    return bodies.noted(what, task_id=task.request.id)
