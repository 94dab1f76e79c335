"""A slot ends with its job, whatever ends that: a scheduler brings back what is left queued."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from celery.canvas import Signature
from kombu.exceptions import OperationalError

from taskguard import StaleFenceError, StoreUnavailableError, current_fence
from taskguard.celery import install
from taskguard.celery.guarding import app_guard_of
from taskguard.celery.scheduled import make_aware
from taskguard.guard import Guard
from taskguard.protocol.store import Claim, Ending, Lease
from taskguard.schedule.entry import Slot
from taskguard.schedule.running import claim_of
from tests.schedule.bench import every

from .inprocess import deliver, guarded, make_app, ours_of, sent, store_of

AT = 1_794_873_600_000_000


def away(*_: Any, **__: Any) -> Any:
    raise StoreUnavailableError("the store", "gone")


def same(a: Any) -> Any:
    return a


def made(body: Any, conf: dict[str, Any] | None = None, **options: Any) -> Any:
    app = make_app(**(conf or {}))
    task = guarded(app, name="job", **options)(body)
    return app.tasks[task.name]


def publish(task: Any, **options: Any) -> Slot:
    """The slot, as a scheduler leaves it for its worker."""
    slot = every(3600, **options).slot(AT)
    store = app_guard_of(task.app).guard.store
    assert isinstance(store.claim(replace(claim_of(slot.note(), slot.job_id, 86400.0), state="queued")), Lease)
    return slot


def deliver_slot(task: Any, slot: Slot, *args: Any) -> Any:
    return deliver(task, slot.job_id, *args, id=slot.job_id, slot=slot.note().as_dict())


def end_of(task: Any, slot: Slot) -> tuple[str, str | None]:
    run = store_of(task.app).get(slot.run_key)
    return run.state, run.how


def test_arguments_that_do_not_fit():
    task = made(same)
    slot = publish(task)
    assert deliver_slot(task, slot, 1, 2).info.state == "FAILURE"
    assert end_of(task, slot) == ("free", "failed")


def test_a_key_that_cannot_be_made():
    def no_key(a: int) -> str:
        raise RuntimeError("the database is away")

    task = made(same, key=no_key)
    slot = publish(task)
    answer = deliver_slot(task, slot, 1)
    assert answer.info.state == "FAILURE" and "the database is away" in str(answer.info.retval)
    assert end_of(task, slot) == ("free", "failed")


def test_a_retry_that_cannot_be_written():
    def body(self: Any, a: int) -> None:
        raise self.retry(args=(object(),), countdown=0)

    task = made(body, bind=True)
    slot = publish(task)
    assert deliver_slot(task, slot, 1).info.state == "FAILURE"
    assert end_of(task, slot) == ("free", "failed")
    assert task.taskguard.get(1).state == "free"


def test_a_body_that_runs_unguarded_as_its_key_cannot_be_asked_for():
    ran = []

    def body(a: int) -> None:
        ran.append(a)

    task = made(body, {"taskguard_on_store_error": "run_unguarded"})
    slot, guard = publish(task), app_guard_of(task.app).guard
    guard.patience, claim = 0.0, guard.store.claim
    guard.store.claim = lambda asked, *rest: claim(asked, *rest) if asked.key == slot.run_key else away()
    assert deliver_slot(task, slot, 1).info is None and ran == [1]
    assert end_of(task, slot) == ("done", "succeeded")


def test_a_job_that_must_wait_and_was_acknowledged_early_while_the_broker_is_away(monkeypatch):
    task = made(same, acks_late=False)
    slot, guard = publish(task, overlap="buffer_all"), app_guard_of(task.app).guard
    guard.ask(guard.new_claim(task.taskguard.key(1), "another", task.taskguard.policy))

    def refuse(*_: Any, **__: Any) -> Any:
        raise OperationalError("the broker is away")

    monkeypatch.setattr(Signature, "apply_async", refuse)
    assert deliver_slot(task, slot, 1).info.state == "FAILURE"
    assert end_of(task, slot) == ("free", "failed")


@pytest.mark.parametrize("chosen", ["retry", "fail", "run_unguarded"])
def test_the_result_of_a_plain_task_stands_though_its_schedule_does_not_hear_of_it(chosen, monkeypatch):
    app = make_app(taskguard_on_store_error=chosen)
    install(app)
    app.task(name="plain", shared=False, acks_late=True)(same)
    task = app.tasks["plain"]
    make_aware(task)
    slot, guard, patiently = publish(task), app_guard_of(app).guard, Guard._patiently
    monkeypatch.setattr(Guard, "_patiently", lambda self, verb, who, patience: patiently(self, verb, who, 0.0))
    guard.store.complete = away
    answer = deliver_slot(task, slot, 1)
    assert (answer.info, answer.retval, sent(app)) == (None, 1, [])


def test_a_retry_of_a_plain_task_that_comes_before_its_body_has_ended_is_not_a_copy_of_it():
    """Celery sends it at once. A copy of the message before, which waits in case the run dies, has other arguments."""
    app, ran = make_app(), []
    install(app)

    @app.task(name="pages", bind=True, shared=False, acks_late=True)
    def pages(self: Any, page: int) -> None:
        ran.append(page)
        if page > 1:
            return
        deliver_slot(self, slot, 1)  # the broker delivers the message once more: that copy goes on
        assert sent(app)
        try:
            self.retry(args=(2,), countdown=0)
        finally:
            [early] = sent(app)
            deliver(self, slot.job_id, *early.payload[0], request={"retries": 1}, **ours_of(early))

    task = app.tasks["pages"]
    make_aware(task)
    slot = publish(task)
    assert deliver_slot(task, slot, 1).info.state == "RETRY"
    [deferred] = sent(app)
    deliver(task, slot.job_id, *deferred.payload[0], request={"retries": 1}, **ours_of(deferred))
    assert ran == [1, 2]
    assert end_of(task, slot) == ("done", "succeeded")


# -- beside slots ------------------------------------------------------------------------------------------------------


def test_a_replacement_that_cannot_be_written_frees_the_key():
    def body(self: Any, a: int) -> None:
        raise self.replace(self.app.tasks["other"].s(object()))

    task = made(body, bind=True)
    task.app.task(name="other", shared=False)(same)
    assert deliver(task, "job", 1, id="job", key=task.taskguard.key(1)).info.state == "FAILURE"
    assert task.taskguard.get(1).state == "free"


@pytest.mark.parametrize("hold", ["running", "until_done"])
@pytest.mark.parametrize("ignore_result", [False, True])
def test_the_one_more_run_is_not_joined_to_the_run_before_it(hold, ignore_result):
    ran: list[str] = []
    options = {"hold": hold, "on_conflict": "run_once_more", "ignore_result": ignore_result}

    def body(a: int, b: str) -> None:
        ran.append(b)

    task = made(body, key="a", **options)
    guard, key = app_guard_of(task.app).guard, task.taskguard.key(1)
    older = guard.store.claim(Claim(key, "older", "attempt", lease=60, keep_for=60, payload="job:older"))
    deliver(task, "job", 1, "newest", id="job")
    guard.store.complete(older, Ending(how="succeeded", keep_for=60, outcome=guard.outcomes.encode("older")))
    [message] = sent(task.app)
    deliver(task, "job", 1, "newest", **ours_of(message))
    assert ran == ["newest"]


def test_a_token_that_is_refused_after_a_retry_was_asked_for_is_a_loss():
    def body(self: Any, a: int) -> None:
        self.retry(throw=False, countdown=0)
        fence = current_fence()
        raise StaleFenceError(fence.key, fence.token, "row", fence.token + 1)

    task = made(body, bind=True)
    assert deliver(task, "job", 1, id="job", key=task.taskguard.key(1)).info.state == "IGNORED"
    [message] = sent(task.app)
    assert message.headers["retries"] == 0 and message.headers["taskguard_floor"]


def test_a_run_beside_another_stays_ended_though_the_store_goes_away_after_that():
    ran = []

    def body(a: int) -> None:
        ran.append(a)

    task = made(body, enforce=False)
    guard = app_guard_of(task.app).guard
    guard.ask(guard.new_claim(task.taskguard.key(1), "another", task.taskguard.policy))
    guard.patience, release = 0.0, guard.store.release
    guard.store.release = lambda who, *rest, **how: away() if how.get("anyway") else release(who, *rest, **how)
    assert deliver(task, "job", 1, id="job", key=task.taskguard.key(1)).info is None
    assert ran == [1] and not sent(task.app)
