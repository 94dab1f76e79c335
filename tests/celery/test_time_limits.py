"""A soft time limit that comes while the guard itself is at work: the job has failed, and holds nothing any more."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from taskguard.celery import install
from taskguard.celery.scheduled import make_aware
from tests.schedule.bench import every

from .inprocess import deliver, guarded, live, make_app, ours_of, sent, store_of

SLOT = every(3600).slot(1_794_873_600_000_000)


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


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("on_done", ["rerun", "reuse"])
def test_a_job_whose_time_is_over_before_it_has_the_answer_to_its_claim(on_done, before):
    task = make_task(on_done=on_done, keep_for=600)
    time_is_over(store_of(task.app), "claim", before=before)
    answer = deliver(task, "job", 1)
    assert answer.info.state == "FAILURE" and isinstance(answer.retval.exception, SoftTimeLimitExceeded)
    assert not task.app.ran
    assert_failed_for_good(task, "job")


def test_a_job_whose_time_is_over_while_it_is_told_that_it_has_started():
    task = make_task(track_started=True)
    time_is_over(task.backend, "store_result", before=True)
    assert deliver(task, "started", 1).info.state == "FAILURE"
    assert not task.app.ran
    assert_failed_for_good(task, "started")


@pytest.mark.parametrize("before", [False, True])
def test_a_job_whose_time_is_over_while_it_leaves_its_place_in_the_queue(before):
    task = make_task(hold="one_queued_one_running")
    call = task.delay(1)
    [message] = sent(task.app)
    time_is_over(store_of(task.app), "release", before=before)
    assert deliver(task, call.id, 1, **ours_of(message)).info.state == "FAILURE"
    assert not task.app.ran
    assert_failed_for_good(task, call.id, **ours_of(message))


@pytest.mark.parametrize("before", [False, True])
def test_a_job_whose_time_is_over_while_the_store_hears_of_its_success(before):
    """Celery calls it a failure; the guard knows that the body has run."""
    task = make_task()
    time_is_over(store_of(task.app), "complete", before=before)
    assert deliver(task, f"succeeded {before}", 1).info.state == "FAILURE"
    assert task.app.ran == [1]
    assert task.taskguard.get(1).how == "succeeded"
    assert_failed_for_good(task, f"succeeded {before}")


def test_a_body_that_is_ended_by_its_time_limit_is_told_once():
    app = make_app()
    events: list[str] = []
    app.conf.taskguard_listeners = [lambda event: events.append(event.kind)]

    @guarded(app)
    def add(a):
        os.kill(os.getpid(), signal.SIGUSR1)

    assert deliver(app.tasks[add.name], "in the body", 1).info.state == "FAILURE"
    assert events == ["claimed", "failed"]


@pytest.mark.parametrize("before", [False, True])
def test_a_job_whose_time_is_over_while_its_retry_is_published(before):
    app = make_app()
    app.ran = []

    @guarded(app, bind=True)
    def again(self, a):
        app.ran.append(a)
        raise self.retry(countdown=0)

    task = app.tasks[again.name]
    time_is_over(task.taskguard.guarding, "send", before=before)
    assert deliver(task, "retried", 1).info.state == "FAILURE"
    for message in sent(app):
        deliver(task, "retried", 1, request={"retries": 1}, **ours_of(message))
    assert app.ran == [1]
    assert_failed_for_good(task, "retried")


@pytest.mark.parametrize("before", [False, True])
def test_a_job_whose_time_is_over_while_it_is_put_back(before):
    task = make_task(on_conflict="wait")
    guard = task.taskguard.guarding.guard
    _, twin = guard.ask(guard.new_claim(task.taskguard.key(1), "twin", task.taskguard.policy))
    time_is_over(task.taskguard.guarding.app.amqp, "send_task_message", before=before)
    assert deliver(task, "put back", 1).info.state == "FAILURE"
    guard.store.forget(twin.key)
    for message in sent(task.app):
        deliver(task, "put back", 1, **ours_of(message))
    assert not task.app.ran
    assert_failed_for_good(task, "put back")


@pytest.mark.parametrize("verb", ["claim", "complete"])
def test_a_plain_scheduled_task_whose_time_is_over(verb):
    app = make_app()
    install(app)
    ran = []

    @app.task(name="plain", shared=False, acks_late=True)
    def plain():
        ran.append(1)

    task = app.tasks["plain"]
    make_aware(task)
    time_is_over(store_of(app), verb)
    slot = {"id": SLOT.job_id, "slot": SLOT.note().as_dict()}
    assert deliver(task, SLOT.job_id, **slot).info.state == "FAILURE"
    assert store_of(app).get(SLOT.run_key).state != "running"
    before = list(ran)
    assert deliver(task, SLOT.job_id, **slot).info.state == "IGNORED"
    assert ran == before == ([] if verb == "claim" else [1])


@pytest.mark.parametrize("claims", [0, 1])
def test_a_guarded_scheduled_task_whose_time_is_over_while_it_claims(claims):
    """Its slot, or its own key, whichever it was just asking for."""
    task = make_task()
    store = store_of(task.app)
    original, asked = store.claim, []

    def slow(claim: Any) -> Any:
        answer = original(claim)
        asked.append(claim.key)
        if len(asked) == claims + 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        return answer

    store.claim = slow
    slot = {"id": SLOT.job_id, "slot": SLOT.note().as_dict()}
    assert deliver(task, SLOT.job_id, 1, **slot).info.state == "FAILURE"
    assert len(asked) == claims + 1
    assert store.get(SLOT.run_key).state == "free"
    assert_failed_for_good(task, SLOT.job_id, **slot)


def test_a_job_that_is_not_enforced_leaves_nothing_of_a_retry_that_never_left():
    """Its worker died between the end of its lease and the message of its retry; the message before comes again."""
    task = make_task(enforce=False)
    guard = task.taskguard.guarding.guard
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
