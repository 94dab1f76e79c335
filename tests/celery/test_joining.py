"""A job that joined its twin has ended as its twin did, for every copy of its message."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from .inprocess import deliver, guarded, make_app, sent, store_of


@pytest.fixture
def ran() -> list[str]:
    return []


def ids() -> tuple[str, str]:
    """Of the twin, and of the one that joins it; the results of all tests are in one place."""
    return f"twin-{uuid4().hex}", f"joiner-{uuid4().hex}"


def make_task(ran: list[str], **options: Any) -> Any:
    app = make_app()

    @guarded(app, name="add", key="n", hold="running", **options)
    def add(n: int, tag: str) -> str:
        ran.append(tag)
        if tag == "fails":
            raise ValueError(tag)
        return tag

    return app.tasks["add"]


@pytest.mark.parametrize("tag", ["returns", "fails"])
def test_a_copy_that_knows_of_no_twin_does_not_run(ran, tag):
    task = make_task(ran)
    twin, joiner = ids()
    deliver(task, twin, 1, tag)
    deliver(task, joiner, 1, "its own", id=joiner, join=twin)
    first = task.AsyncResult(joiner)
    told = (first.state, repr(first.result))
    deliver(task, joiner, 1, "its own")

    assert ran == [tag]
    assert (first.state, repr(first.result)) == told


def test_a_copy_that_comes_before_the_result_is_stored_is_answered_the_same(ran):
    task = make_task(ran)
    twin, joiner = ids()
    deliver(task, twin, 1, "the twin's")
    guard = task.taskguard.guarding.guard
    key, policy = task.taskguard.key(1, ""), task.taskguard.policy
    guard.ask(guard.new_claim(key, joiner, policy, join=twin))  # its worker dies with the answer
    deliver(task, joiner, 1, "its own")

    assert task.AsyncResult(joiner).get(timeout=20) == "the twin's"
    assert ran == ["the twin's"]


def test_an_outcome_that_is_not_kept_is_that_of_the_twin(ran):
    """Only the fact is kept: the twin's result is where Celery stored it."""
    task = make_task(ran)
    twin, joiner = ids()
    large = "x" * 100_000
    deliver(task, twin, 1, large)
    guard = task.taskguard.guarding.guard
    key, policy = task.taskguard.key(1, ""), task.taskguard.policy
    guard.ask(guard.new_claim(key, joiner, policy, join=twin))
    deliver(task, joiner, 1, "its own")

    assert task.AsyncResult(joiner).get(timeout=20) == large


def test_a_copy_that_joins_while_another_runs_is_put_back(ran):
    task = make_task(ran)
    twin, joiner = ids()
    deliver(task, twin, 1, "the twin's")
    guard = task.taskguard.guarding.guard
    key, policy = task.taskguard.key(1, ""), task.taskguard.policy
    guard.ask(guard.new_claim(key, joiner, policy))  # it runs elsewhere
    deliver(task, joiner, 1, "its own", id=joiner, join=twin)

    assert task.AsyncResult(joiner).state == "PENDING"
    assert [message.headers["id"] for message in sent(task.app)] == [joiner]
    assert store_of(task.app).get(key).owner == joiner
