"""A job that meets another one at the worker: refused, or waiting, and what it holds then."""

from __future__ import annotations

from typing import Any

import pytest

from taskguard import StaleFenceError, current_fence
from tests.scenarios.queues import Queue

REFUSES: dict[str, Any] = {"hold": "one_queued_one_running", "on_conflict": {"enqueue": "skip", "run": "raise"}}
ORDER = "order"


# -- refused ---------------------------------------------------------------------------------------------------------


def test_a_refused_job_leaves_its_place_in_the_queue(queue: Queue):
    function = queue.function(**REFUSES)
    holder = function.hold()
    call = function.call(1)
    queue.work()

    assert queue.outcome(call).error.count("DuplicateTaskError")
    assert queue.live() == [holder.owner]
    assert not function.call(1).taskguard.duplicate


def test_a_job_whose_idempotency_key_was_used_for_other_work_leaves_its_place_in_the_queue(queue: Queue):
    function = queue.function(hold="one_queued_one_running")
    holder = function.hold(key=function.explicit(ORDER))
    call = function.call(1, idempotency_key=ORDER)
    queue.work()

    assert queue.outcome(call).error.count("PayloadMismatchError")
    assert queue.live() == [holder.owner]


@pytest.mark.parametrize(("options", "given"), [(REFUSES, ""), ({"hold": "one_queued_one_running"}, ORDER)])
def test_a_leftover_copy_of_a_refused_job_does_not_run(queue: Queue, options: dict[str, Any], given: str):
    function = queue.function(**options)
    holder = function.hold(key=function.explicit(given) if given else "")
    call = function.call(1, idempotency_key=given)
    queue.work()
    function.free(holder)
    queue.copy(call)
    queue.work(plain=True)

    assert not queue.ran and queue.outcome(call).status == "failed"


def test_raise_at_the_worker(queue: Queue):
    function = queue.function(hold="running", on_conflict="raise")
    holder = function.hold()
    call = function.call(1)
    queue.work()

    error = queue.outcome(call).error
    assert "DuplicateTaskError" in error and holder.owner in error and not queue.ran
    assert queue.live() == [holder.owner]


# -- how long it waits -----------------------------------------------------------------------------------------------


def test_an_outage_is_not_waiting_for_another_job(queue: Queue):
    function = queue.function(on_conflict="wait")
    call = function.call(1)
    with queue.outage("claim"):
        queue.work(1)
    function.hold()
    queue.later()
    queue.work(1)

    assert queue.outcome(call).status == "queued"


def test_its_own_other_run_is_not_another_job(queue: Queue):
    function = queue.function(on_conflict="wait")
    call = function.call(1)
    own = function.hold(owner=queue.owner(call))
    queue.work(1)
    function.free(own)
    function.hold()
    queue.later()
    queue.work(1)

    assert queue.outcome(call).status == "queued"


@pytest.mark.parametrize("state", ["running", "queued"])
def test_a_job_waits_for_another_one_no_longer_than_told(queue: Queue, state: Any):
    function = queue.function(on_conflict={"enqueue": "skip", "run": "wait"})
    function.hold(state=state)
    call = function.leave(1)
    queue.work(1)
    assert queue.outcome(call).status == "queued"
    queue.later()
    queue.work(2)

    assert queue.outcome(call).error.count("WaitTimeoutError")


def test_wait_up_to(queue: Queue):
    function = queue.function(on_conflict="wait", wait_up_to=60)
    function.hold()
    call = function.call(1)
    queue.work(1)
    queue.later(50)
    queue.work(1)
    assert queue.outcome(call).status == "queued"
    queue.later(20)  # on top of the others
    queue.work(1)

    assert "WaitTimeoutError" in queue.outcome(call).error and not queue.ran


# -- what cannot wait ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["running", "queued"])
def test_a_call_that_runs_at_once_is_refused_if_another_job_has_the_key(queue: Queue, state: Any):
    """Nothing can be put back. The job that is queued does the work."""
    function = queue.function()
    holder = function.hold(state=state)

    assert function.at_once(1).error.count("DuplicateTaskError")
    assert not queue.ran and queue.live() == [holder.owner]


def test_a_call_that_runs_at_once_and_whose_token_is_refused_raises_those_to_come(queue: Queue):
    refused = 2**52

    def write() -> None:
        fence = current_fence()
        assert fence is not None
        if fence.token <= refused:
            raise StaleFenceError(fence.key, fence.token, "row 1", refused)

    function = queue.function(write)

    assert function.at_once(1).error.count("StaleFenceError")
    assert function.at_once(1).status == "finished"


# -- a call within the body ------------------------------------------------------------------------------------------


def test_a_body_that_calls_its_own_task_keeps_the_key(queue: Queue):
    found: list[Any] = []

    def call_itself() -> str:
        if len(queue.ran) > 1:
            return "inner"
        found.append(function.task(1, "inner"))
        entry = queue.entry(function.key(1))
        found.append((entry.state, entry.owner, function.call(1).id))
        return "outer"

    function = queue.function(call_itself)
    call = function.call(1, "outer")
    queue.work()

    assert found == ["inner", ("running", queue.owner(call), call.id)]
    assert queue.ran == ["outer", "inner"] and queue.outcome(call).value == "outer"
