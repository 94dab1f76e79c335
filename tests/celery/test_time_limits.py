"""A soft time limit that comes while a message is on its way: the job has failed, and holds nothing any more."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from .inprocess import deliver, guarded, live, make_app, ours_of, sent


@pytest.fixture(autouse=True)
def soft_limit() -> Iterator[None]:
    """As in a child of the pool: the handler of the signal raises."""

    def raise_limit(number: int, frame: Any) -> None:
        raise SoftTimeLimitExceeded

    before = signal.signal(signal.SIGUSR1, raise_limit)
    yield
    signal.signal(signal.SIGUSR1, before)


def time_is_over(owner: Any, verb: str, *, before: bool = False) -> None:
    """The limit comes once: when the verb was carried out and has not answered yet, or *before* it is."""
    original, reached = getattr(owner, verb), []

    def slow(*args: Any, **options: Any) -> Any:
        if before and not reached:
            reached.append(verb)
            os.kill(os.getpid(), signal.SIGUSR1)
        answer = original(*args, **options)
        if not reached:
            reached.append(verb)
            os.kill(os.getpid(), signal.SIGUSR1)
        return answer

    setattr(owner, verb, slow)


def make_task(**options: Any) -> Any:
    app = make_app()
    app.ran = []

    @guarded(app, **options)
    def add(a):
        app.ran.append(a)
        return a

    return app.tasks[add.name]


def assert_failed_for_good(task: Any, task_id: str, **headers: Any) -> None:
    """The key is free, and another copy of the message finds out that the job has ended."""
    assert live(task.app) == []
    runs = list(task.app.ran)
    deliver(task, task_id, 1, **headers)
    assert task.app.ran == runs
    assert sent(task.app) == []


def test_a_job_whose_time_is_over_while_it_is_told_that_it_has_started():
    task = make_task(track_started=True)
    time_is_over(task.backend, "store_result", before=True)
    assert deliver(task, "started", 1).info.state == "FAILURE"
    assert not task.app.ran
    assert_failed_for_good(task, "started")


@pytest.mark.parametrize("before", [False, True])
def test_a_job_whose_time_is_over_while_its_retry_is_published(before):
    app = make_app()
    app.ran = []

    @guarded(app, bind=True)
    def again(self, a):
        app.ran.append(a)
        raise self.retry(countdown=0)

    task = app.tasks[again.name]
    time_is_over(task.taskguard.app_guard, "send", before=before)
    assert deliver(task, "retried", 1).info.state == "FAILURE"
    for message in sent(app):
        deliver(task, "retried", 1, request={"retries": 1}, **ours_of(message))
    assert app.ran == [1]
    assert_failed_for_good(task, "retried")


@pytest.mark.parametrize("before", [False, True])
def test_a_job_whose_time_is_over_while_it_is_put_back(before):
    task = make_task(on_conflict="wait")
    guard = task.taskguard.app_guard.guard
    _, twin = guard.ask(guard.new_claim(task.taskguard.key(1), "twin", task.taskguard.policy))
    time_is_over(task.taskguard.app_guard.app.amqp, "send_task_message", before=before)
    assert deliver(task, "put back", 1).info.state == "FAILURE"
    guard.store.forget(twin.key)
    for message in sent(task.app):
        deliver(task, "put back", 1, **ours_of(message))
    assert not task.app.ran
    assert_failed_for_good(task, "put back")


def test_a_job_that_is_not_enforced_leaves_nothing_of_a_retry_that_never_left():
    """Its worker died between the end of its lease and the message of its retry; the message before comes again."""
    task = make_task(enforce=False)
    guard = task.taskguard.app_guard.guard
    lease = guard.ask(guard.new_claim(task.taskguard.key(1), "job", task.taskguard.policy))[1]
    assert guard.store.requeue(lease, 600.0, copy_for=300.0, copy="never left")
    claim = guard.store.claim

    def beside(asked: Any) -> Any:
        answer = claim(asked)
        if ":beside:" in asked.key:
            os.kill(os.getpid(), signal.SIGUSR1)
        return answer

    guard.store.claim = beside
    assert deliver(task, "job", 1).info.state == "FAILURE"
    assert live(task.app) == []
