"""A job that meets another one at the worker: refused, or waiting, and what it holds then."""

from __future__ import annotations

import time
from typing import Any

import pytest
from rq.serializers import DefaultSerializer

from taskguard import (
    DuplicateTaskError,
    OutcomeNotKeptError,
    PayloadMismatchError,
    StaleFenceError,
    StoreUnavailableError,
    WaitTimeoutError,
    current_fence,
)
from taskguard.protocol.store import Ending
from taskguard.rq.outcomes import QueueOutcomes

from .inprocess import deliver, guarded, live, make_app, ours_of, sent, store_of


def make_task(**options: Any) -> Any:
    app = make_app()
    app.ran = []

    @guarded(app, **{"key": "a", **options})
    def add(a, b=None):
        app.ran.append(b)
        return b

    return app.tasks[add.name]


def run_twin(task: Any, key: str, payload: str = "", state: str = "running") -> Any:
    """Another job runs, or is queued, under that key."""
    guard = task.taskguard.guarding.guard
    return guard.ask(guard.new_claim(key, "twin", task.taskguard.policy, payload=payload, state=state))[1]


REFUSES = {"hold": "one_queued_one_running", "on_conflict": {"enqueue": "skip", "run": "raise"}}


# -- refused ---------------------------------------------------------------------------------------------------------


def test_a_refused_job_leaves_its_place_in_the_queue():
    task = make_task(**REFUSES)
    twin = run_twin(task, task.taskguard.key(1))
    call = task.delay(1)
    [message] = sent(task.app)
    answer = deliver(task, call.id, 1, **ours_of(message))
    assert isinstance(answer.retval.exception, DuplicateTaskError)
    assert [entry.owner for entry in live(task.app)] == [twin.owner]
    assert not task.delay(1).taskguard.duplicate


def test_a_job_whose_idempotency_key_was_used_for_other_work_leaves_its_place_in_the_queue():
    task = make_task(hold="one_queued_one_running")
    twin = run_twin(task, task.taskguard.keys.explicit("order"), "other work")
    call = task.apply_async((1,), idempotency_key="order")
    [message] = sent(task.app)
    answer = deliver(task, call.id, 1, **ours_of(message))
    assert isinstance(answer.retval.exception, PayloadMismatchError)
    assert [entry.owner for entry in live(task.app)] == [twin.owner]


@pytest.mark.parametrize(("options", "given"), [(REFUSES, ""), ({"hold": "one_queued_one_running"}, "order")])
def test_a_leftover_copy_of_a_refused_job_does_not_run(options, given):
    task = make_task(**options)
    key = task.taskguard.keys.explicit(given) if given else task.taskguard.key(1)
    twin = run_twin(task, key, "other work")
    call = task.apply_async((1,), idempotency_key=given) if given else task.delay(1)
    [message] = sent(task.app)
    deliver(task, call.id, 1, **ours_of(message))
    task.taskguard.guarding.guard.store.forget(twin.key)
    deliver(task, call.id, 1, **ours_of(message))
    assert not task.app.ran


# -- how long it waits -----------------------------------------------------------------------------------------------


def an_hour_later(monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 4000)


def test_an_outage_is_not_waiting_for_another_job(monkeypatch):
    task = make_task(on_conflict="wait")
    guard = task.taskguard.guarding.guard
    guard.patience = 0.0
    with monkeypatch.context() as patch:
        patch.setattr(guard.store, "claim", away)
        deliver(task, "outage", 1)
    [message] = sent(task.app)
    run_twin(task, task.taskguard.key(1))
    an_hour_later(monkeypatch)
    assert deliver(task, "outage", 1, **ours_of(message)).info.state == "IGNORED"


def away(*args: Any, **options: Any) -> Any:
    raise StoreUnavailableError("the store", "gone")


def test_its_own_other_run_is_not_another_job(monkeypatch):
    task = make_task(on_conflict="wait")
    guard = task.taskguard.guarding.guard
    own = guard.ask(guard.new_claim(task.taskguard.key(1), "itself", task.taskguard.policy))[1]
    deliver(task, "itself", 1)
    [message] = sent(task.app)
    guard.store.forget(own.key)
    run_twin(task, task.taskguard.key(1))
    an_hour_later(monkeypatch)
    assert deliver(task, "itself", 1, **ours_of(message)).info.state == "IGNORED"


@pytest.mark.parametrize("state", ["running", "queued"])
def test_a_job_waits_for_another_one_no_longer_than_told(monkeypatch, state):
    task = make_task(on_conflict={"enqueue": "skip", "run": "wait"})
    run_twin(task, task.taskguard.key(1), state=state)
    assert deliver(task, f"behind {state}", 1).info.state == "IGNORED"
    message = next(found for found in sent(task.app) if found.headers["id"] == f"behind {state}")
    an_hour_later(monkeypatch)
    answer = deliver(task, f"behind {state}", 1, **ours_of(message))
    assert isinstance(answer.retval.exception, WaitTimeoutError)


@pytest.mark.parametrize(("expires", "held_for"), [(10 * 86400, 86400), (40, 40)])
def test_a_place_is_held_no_longer_than_queued_for_and_than_the_job_lasts(expires, held_for):
    task = make_task()
    task.apply_async((1,), expires=expires)
    assert task.taskguard.get(1).remaining == pytest.approx(held_for, abs=5)


# -- a caller's own key ----------------------------------------------------------------------------------------------


def test_an_idempotency_key_stands_for_one_task_only():
    """Two tasks that share their keys: the outcome of one is no answer to a call of the other."""
    app = make_app()

    @guarded(app, key_space="billing")
    def charge(a): ...

    @guarded(app, key_space="billing")
    def refund(a): ...

    charge.apply_async((5,), idempotency_key="order")
    with pytest.raises(PayloadMismatchError):
        refund.apply_async((5,), idempotency_key="order")


# -- what cannot wait, and what cannot be read -----------------------------------------------------------------------


@pytest.mark.parametrize("state", ["running", "queued"])
def test_a_call_that_runs_at_once_is_refused_if_another_job_has_the_key(state):
    """Nothing can be put back. The job that is queued does the work."""
    task = make_task()
    twin = run_twin(task, task.taskguard.key(1), state=state)
    assert isinstance(task.apply((1,)).result, DuplicateTaskError)
    assert not task.app.ran and [entry.owner for entry in live(task.app)] == [twin.owner]


def test_the_outcome_of_the_other_queue_that_cannot_be_read():
    """RQ keeps what JSON would change as a pickle, and this app accepts none."""
    task = make_task(on_done="reuse_success", keep_for=7200)
    outcome = QueueOutcomes(DefaultSerializer).encode((1, 2))
    twin = run_twin(task, task.taskguard.key(1))
    assert store_of(task.app).complete(twin, Ending(how="succeeded", keep_for=60, outcome=outcome))
    answered = task.delay(1)
    assert answered.state == "SUCCESS"
    with pytest.raises(OutcomeNotKeptError, match="does not accept"):
        answered.get()
    for answer in (deliver(task, "reader", 1), deliver(task.app.tasks["celery.map"], "map", task.s(), [1])):
        assert isinstance(answer.retval.exception, OutcomeNotKeptError)
    assert not task.app.ran


def test_a_call_that_runs_at_once_and_whose_token_is_refused_raises_those_to_come():
    app, mark = make_app(), 2**52

    @guarded(app)
    def write():
        fence = current_fence()
        if fence.token <= mark:
            raise StaleFenceError(fence.key, fence.token, "row 1", mark)

    assert isinstance(write.apply().result, StaleFenceError)
    assert write.apply().state == "SUCCESS"
