"""Celery's look for an earlier success: left out where the guard has just established that there is none."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from celery import states
from celery.signals import after_task_publish

from taskguard.celery import first_success

from .inprocess import deliver, goes_away_after, guarded, make_app, store_of


@pytest.fixture(params=["cache+memory", "redis"])
def app(request):
    if request.param == "redis":
        return make_app(result_backend=request.getfixturevalue("redis_server").url)
    return make_app()


@pytest.fixture
def job() -> str:
    return uuid4().hex  # the backend in memory is one for all apps


@pytest.fixture
def looks(app, monkeypatch) -> list[str]:
    """The ids that the backend was asked about."""
    seen: list[str] = []
    get = app.backend.get
    monkeypatch.setattr(app.backend, "get", lambda key: seen.append(key) or get(key))
    return seen


def looked_for(looks: list[str], task_id: str) -> int:
    return sum(task_id in str(key) for key in looks)


def make_task(app: Any, body: Any, **options: Any) -> Any:
    task = guarded(app, **options)(body)
    return app.tasks[task.name]


def double(a: int) -> int:
    return 2 * a


def fails(a: int) -> None:
    raise ValueError(a)


def test_an_accepted_success_is_stored_without_a_look(app, looks, job):
    deliver(make_task(app, double), job, 2)
    assert not looked_for(looks, job)
    assert app.AsyncResult(job).result == 4


def test_of_a_plain_task_celery_looks_as_ever(app, looks, job):
    task = app.task(double, name="plain", shared=False)
    deliver(make_task(app, double), "other", 1)  # the backend has been taught by now
    deliver(app.tasks[task.name], job, 2)
    assert looked_for(looks, job) == 1


def test_of_a_failure_celery_looks(app, looks, job):
    deliver(make_task(app, fails), job, 2)
    assert looked_for(looks, job) == 1
    assert app.AsyncResult(job).state == states.FAILURE


def test_an_end_that_the_store_has_not_accepted_is_looked_for(looks, app, job):
    app.conf.taskguard_on_store_error = "run_unguarded"
    task = make_task(app, double, lease=1)
    task.taskguard.app_guard.guard.patience = 0.0
    goes_away_after(store_of(app), "complete", 0)
    deliver(task, job, 2)
    assert looked_for(looks, job) == 1


def test_a_success_that_could_not_be_stored_is_looked_for_the_next_time(app, looks, job):
    first_success.expect(app.backend, job)
    app.backend.store_result(job, 1, states.SUCCESS)
    app.backend.store_result(job, 2, states.SUCCESS)
    assert looked_for(looks, job) == 1
    assert app.AsyncResult(job).result == 1


def test_nothing_is_left_of_a_result_that_is_not_stored(app, looks):
    deliver(make_task(app, double, ignore_result=True), "ignored", 2)
    deliver(make_task(app, double, name="kept"), "kept", 2)
    assert not first_success._first


def test_a_backend_that_looks_in_another_way_is_left_alone(app, job, monkeypatch):
    monkeypatch.setattr(first_success, "_LOOK", "_a_later_name")
    deliver(make_task(app, double), job, 2)
    assert not first_success._first
    assert app.AsyncResult(job).result == 4


def test_a_backend_that_does_not_look_is_left_alone(app, job):
    backend = make_app(result_backend="rpc://").backend
    first_success.expect(backend, job)
    assert not first_success._first
    assert first_success._LOOK not in vars(backend)


def test_another_delivery_answers_before_the_first_has_stored_its_success(app, job, monkeypatch):
    ran: list[int] = []

    def counted(a: int) -> int:
        ran.append(a)
        return 2 * a

    task, store, asleep = make_task(app, counted), app.backend.mark_as_done, []

    def sleeps(*args: Any, **options: Any) -> Any:
        if not asleep:
            asleep.append(True)
            deliver(task, job, 2)
        return store(*args, **options)

    monkeypatch.setattr(app.backend, "mark_as_done", sleeps)
    deliver(task, job, 2)

    assert asleep and ran == [2]
    assert app.AsyncResult(job).result == 4
    assert not first_success._first


def test_other_work_under_the_same_id_that_succeeds_first_keeps_its_result(app, job):
    """As without a guard: the body sends other work under its own id, and returns when that has its result."""

    @app.task(name="other", shared=False)
    def other() -> str:
        return "the other's"

    def sends(self: Any, a: int) -> str:
        other.apply_async(task_id=self.request.id)
        return "mine"

    def work_at_once(sender: str, **_: Any) -> None:
        if sender == "other":
            deliver(app.tasks["other"], job)

    after_task_publish.connect(work_at_once)
    try:
        deliver(make_task(app, sends, bind=True, name="sends"), job, 1)
    finally:
        after_task_publish.disconnect(work_at_once)

    assert app.AsyncResult(job).result == "the other's"
