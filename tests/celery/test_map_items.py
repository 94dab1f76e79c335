"""The items of `map`, `starmap` and `chunks`: each is guarded where it runs, as by `guard.run`."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from rq.serializers import DefaultSerializer

from taskguard import (
    LeaseLostError,
    OutcomeNotKeptError,
    StoreError,
    StoreUnavailableError,
    WaitTimeoutError,
    current_fence,
)
from taskguard.protocol.store import Ending
from taskguard.rq.outcomes import QueueOutcomes

from .inprocess import deliver, guarded, live, make_app, store_of


def make_task(body: Any = None, *, conf: Any = None, **options: Any) -> Any:
    app = make_app(**(conf or {}))
    app.ran = []

    @guarded(app, **{"key": "a", **options})
    def add(a):
        app.ran.append(a)
        return a if body is None else body(task)

    task = app.tasks[add.name]
    task.taskguard.app_guard.guard.patience = 0.0
    return task


def map_over(task: Any, *items: Any, task_id: str) -> Any:
    mapping = task.app.tasks["celery.map"]
    return deliver(mapping, task_id, task.s(), list(items))


def away(*args: Any, **options: Any) -> Any:
    raise StoreUnavailableError("the store", "gone")


def test_an_item_whose_end_is_refused_is_no_success():
    def lose(task: Any) -> str:
        store_of(task.app).forget(task.taskguard.key(1))  # as a takeover after a pause, or somebody's hand, would
        return "mine"

    task = make_task(lose, on_lost="continue", on_done="reuse_success", keep_for=7200)
    answer = map_over(task, 1, task_id="refused")
    assert isinstance(answer.retval.exception, LeaseLostError)


def test_a_process_that_is_told_to_end_frees_the_key_of_its_item():
    def leave(task: Any) -> None:
        raise SystemExit

    task = make_task(leave)
    with pytest.raises(SystemExit):
        map_over(task, 1, task_id="exit")
    assert live(task.app) == []


def test_a_time_limit_while_an_item_claims_frees_its_key(monkeypatch):
    def raise_limit(number: int, frame: Any) -> None:
        raise SoftTimeLimitExceeded

    task = make_task()
    store, claim = store_of(task.app), store_of(task.app).claim

    def slow(question: Any) -> Any:
        claim(question)
        os.kill(os.getpid(), signal.SIGUSR1)

    monkeypatch.setattr(store, "claim", slow)
    before = signal.signal(signal.SIGUSR1, raise_limit)
    try:
        assert map_over(task, 1, task_id="limit").info.state == "FAILURE"
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert live(task.app) == [] and not task.app.ran


def test_hold_queued_leaves_the_key_free_while_an_item_runs():
    task = make_task(lambda task: str(task.taskguard.get(1)), hold="queued")
    assert map_over(task, 1, task_id="free").retval == ["None"]


@pytest.mark.parametrize("on_done", ["rerun", "reuse_success"])
def test_enforce_false_runs_an_item_beside_another_run(on_done):
    task = make_task(lambda task: current_fence().key, enforce=False, on_done=on_done, keep_for=7200)
    guard = task.taskguard.app_guard.guard
    twin = guard.ask(guard.new_claim(task.taskguard.key(1), "twin", task.taskguard.policy))[1]
    [key] = map_over(task, 1, task_id="beside").retval
    assert key.startswith(f"{task.taskguard.key(1)}:beside:")
    guard.store.forget(twin.key)
    for number in range(2):
        map_over(task, 1, task_id=f"again {number}")
    assert task.app.ran == [1, 1, 1] and live(task.app) == []


@pytest.mark.parametrize(("chosen", "runs"), [("fail", 0), ("run_unguarded", 1)])
def test_an_item_obeys_on_store_error(chosen, runs, monkeypatch):
    task = make_task(conf={"taskguard_on_store_error": chosen})
    monkeypatch.setattr(store_of(task.app), "claim", away)
    answer = map_over(task, 1, task_id=chosen)
    assert len(task.app.ran) == runs
    assert answer.retval == [1] if runs else isinstance(answer.retval.exception, StoreUnavailableError)


@pytest.mark.parametrize("chosen", ["retry", "fail", "run_unguarded"])
def test_an_item_fails_if_the_store_refuses_it(chosen, monkeypatch):
    def refuse(*_: Any) -> Any:
        raise StoreError("store", "a wrong password")

    task = make_task(conf={"taskguard_on_store_error": chosen})
    monkeypatch.setattr(store_of(task.app), "claim", refuse)
    answer = map_over(task, 1, task_id=chosen)

    assert not task.app.ran and "a wrong password" in str(answer.retval.exception)


def test_an_item_waits_for_a_store_that_is_away(monkeypatch):
    task = make_task()
    store, claim, asked = store_of(task.app), store_of(task.app).claim, []

    def comes_back(question: Any) -> Any:
        asked.append(question)
        return claim(question) if len(asked) > 2 else away()

    monkeypatch.setattr(store, "claim", comes_back)
    assert map_over(task, 1, task_id="waits").retval == [1]


@pytest.mark.parametrize("chosen", ["fail", "run_unguarded"])
def test_an_item_whose_end_the_store_cannot_hear(chosen, monkeypatch):
    task = make_task(conf={"taskguard_on_store_error": chosen}, lease=0.1)
    monkeypatch.setattr(store_of(task.app), "complete", away)
    answer = map_over(task, 1, task_id=f"end {chosen}")
    assert (
        answer.retval == [1]
        if chosen == "run_unguarded"
        else isinstance(answer.retval.exception, StoreUnavailableError)
    )


def test_an_outcome_of_the_other_queue_that_cannot_be_read_is_an_error_of_the_item():
    """RQ keeps what JSON would change as a pickle, and this app accepts none."""
    task = make_task(on_done="reuse_success", keep_for=7200)
    guard = task.taskguard.app_guard.guard
    lease = guard.ask(guard.new_claim(task.taskguard.key(1), "another", task.taskguard.policy))[1]
    outcome = QueueOutcomes(DefaultSerializer).encode((1, 2))
    assert guard.store.complete(lease, Ending(how="succeeded", keep_for=60, outcome=outcome))
    answer = map_over(task, 1, task_id="reader")
    assert isinstance(answer.retval.exception, OutcomeNotKeptError) and "does not accept" in str(answer.retval)
    assert not task.app.ran


def hold_for(task: Any, questions: int, monkeypatch: Any) -> list[Any]:
    """Another run has the key until it was asked for so often; the kinds of all events from now on."""
    guard, kinds, asked = task.taskguard.app_guard.guard, [], []
    twin = guard.ask(guard.new_claim(task.taskguard.key(1), "twin", task.taskguard.policy))[1]
    claim = guard.store.claim

    def counted(question: Any) -> Any:
        asked.append(question)
        if len(asked) == questions:
            guard.store.forget(twin.key)
        return claim(question)

    monkeypatch.setattr(guard.store, "claim", counted)
    guard.listeners.add(lambda event: kinds.append(event.kind))
    return kinds


def test_an_item_that_waits_is_reported_once_and_again_when_it_has_the_key(monkeypatch):
    task = make_task(on_conflict="wait")
    kinds = hold_for(task, 4, monkeypatch)
    assert map_over(task, 1, task_id="patient").retval == [1]
    assert kinds == ["duplicate", "claimed", "completed"]


def test_an_item_that_has_waited_too_long_is_reported(monkeypatch):
    task = make_task(on_conflict="wait", wait_up_to=0.1)
    kinds = hold_for(task, 10_000, monkeypatch)
    assert isinstance(map_over(task, 1, task_id="impatient").retval.exception, WaitTimeoutError)
    assert kinds == ["duplicate", "wait_timeout"]
