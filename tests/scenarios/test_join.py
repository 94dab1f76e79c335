"""A job that joined the holder of its key has ended as that one did, for every copy of its message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.scenarios.queues import Function, Queue

LARGE = "x" * 100_000
"""More than an entry keeps: only the fact is kept, and the result is where the queue stored it."""


def claim(queue: Queue, function: Function, call: Any, **options: Any) -> None:
    """What the job's worker claimed before it died, or claims elsewhere."""
    guard = function.guard
    guard.ask(guard.new_claim(function.key(1), queue.owner(call), function.taskguard.policy, **options))


@pytest.mark.parametrize("fails", [False, True])
def test_a_copy_that_knows_of_no_holder_does_not_run(queue: Queue, fails: bool):
    def body() -> str:
        return "the holder's" if not fails else str(1 // 0)

    function = queue.function(body, hold="running")
    holder = function.leave(1, "first")
    queue.work()
    joiner = function.leave(1, "second", joins=queue.owner(holder))
    queue.work()
    first = queue.outcome(joiner)
    assert first.status == ("failed" if fails else "finished") and fails == ("ZeroDivisionError" in first.error)
    for plain in (False, True):
        queue.copy(joiner, anew=True)
        queue.work(plain=plain)

    assert queue.ran == ["first"]
    assert queue.outcome(joiner).status == first.status and queue.outcome(joiner).value == first.value


@pytest.mark.parametrize("value", ["the holder's", LARGE], ids=["small", "large"])
def test_a_copy_that_comes_before_the_result_is_stored_is_answered_the_same(queue: Queue, value: str):
    function = queue.function(hold="running")
    holder = function.leave(1, value)
    queue.work()
    joiner = function.leave(1, "its own")
    claim(queue, function, joiner, join=queue.owner(holder))  # its worker dies with the answer
    queue.work()

    assert queue.outcome(joiner).value == value and queue.ran == [value]


def test_a_copy_that_joins_while_another_runs_is_put_back(queue: Queue):
    function = queue.function(hold="running")
    holder = function.leave(1, "the holder's")
    queue.work()
    joiner = function.leave(1, "its own", joins=queue.owner(holder))
    claim(queue, function, joiner)  # it runs elsewhere
    queue.work(1)

    assert queue.outcome(joiner).status == "queued" and queue.ids == [joiner.id]
    assert queue.entry(function.key(1)).owner == queue.owner(joiner)


def test_a_joined_job_gets_the_outcome_of_its_twin(queue: Queue):
    holder, joiner = _meet(queue, lambda: "the holder's")

    assert queue.outcome(joiner) == queue.outcome(holder) and queue.outcome(joiner).value == "the holder's"
    assert queue.ran == ["first"]


def test_a_joined_job_fails_as_its_twin_does(queue: Queue):
    holder, joiner = _meet(queue, lambda: 1 // 0)

    assert queue.outcome(joiner).status == queue.outcome(holder).status == "failed"
    assert "ZeroDivisionError" in queue.outcome(joiner).error and queue.ran == ["first"]


def test_a_joined_job_takes_the_place_of_a_twin_that_ended_with_nothing(queue: Queue):
    function = queue.function(hold="running")
    holder = function.hold()
    joiner = function.call(1, "its own")
    queue.work(1)
    assert queue.outcome(joiner).status == "queued" and queue.envelope(joiner).join == holder.owner
    function.free(holder)
    queue.work()

    assert queue.outcome(joiner).value == "its own"


def _meet(queue: Queue, body: Callable[[], Any]) -> tuple[Any, Any]:
    """Two jobs of one key; nothing is claimed at the call, so the second one meets the first while that one runs."""
    met = []

    def meet() -> Any:
        if not met:
            met.append(function.leave(1, "second"))
            queue.work(1)
            assert queue.outcome(met[0]).status == "queued"
        return body()

    function = queue.function(meet, hold="running")
    holder = function.leave(1, "first")
    queue.work(1)
    queue.work()
    return holder, met[0]
