"""`enforce=False`: what would have been a duplicate is counted, and everything runs as without a guard."""

from __future__ import annotations

from typing import Any

import pytest

from taskguard import StaleFenceError, current_fence
from tests.scenarios.queues import CeleryQueue, Queue

REFUSED = 2**52


@pytest.mark.parametrize("on_done", ["reuse_success", "reuse"])
def test_what_is_done_already_runs_again(queue: Queue, on_done: str):
    function = queue.function(enforce=False, on_done=on_done, keep_for=7200)
    for value in ("first", "second"):
        call = function.call(1, value)
        assert not call.taskguard.duplicate
        queue.work()
        assert queue.outcome(call).value == value

    assert queue.ran == ["first", "second"]


def test_an_idempotency_key_may_be_used_for_other_work(queue: Queue):
    function = queue.function(enforce=False)
    order = function.key(1)
    function.call(1, "first", idempotency_key=order)
    function.call(2, "second", idempotency_key=order)
    queue.work()
    assert queue.ran == ["first", "second"]
    function.call(3, "third", idempotency_key=order)
    queue.work()

    assert queue.ran == ["first", "second", "third"]


@pytest.mark.parametrize("way", ["asked for", "after a failure"])
def test_a_retry_of_a_run_beside_another_leaves_nothing_in_the_queue(queue: Queue, way: str):
    def fail_once() -> Any:
        if len(queue.ran) > 1:
            return "second"
        if way == "asked for":
            return queue.again()
        raise ValueError("once")

    function = queue.function(fail_once, enforce=False, **queue.retries(1))
    holder = function.hold()
    call = function.call(1)
    queue.work(1)
    assert len(queue.ran) == 1 and queue.live() == [holder.owner]
    queue.work()

    assert queue.outcome(call).value == "second"


def test_a_run_beside_another_that_goes_back_leaves_nothing_in_the_queue(queue: CeleryQueue):
    function = queue.function(queue.goes_back, enforce=False)
    holder = function.hold()
    function.call(1)
    queue.work(1)

    assert len(queue.ran) == 1 and queue.live() == [holder.owner]


def test_a_run_beside_another_whose_token_is_refused_gets_a_higher_one_and_leaves_nothing_in_the_queue(queue: Queue):
    tokens = []

    def write() -> None:
        fence = current_fence()
        assert fence is not None
        tokens.append(fence.token)
        if fence.token <= REFUSED:
            raise StaleFenceError(fence.key, fence.token, "row 1", REFUSED)

    function = queue.function(write, enforce=False)
    holder = function.hold()
    call = function.call(1)
    queue.work(1)
    assert queue.outcome(call).status == "queued" and queue.live() == [holder.owner]
    queue.work()

    assert queue.outcome(call).status == "finished"
    assert [token > REFUSED for token in tokens] == [False, True]
    assert queue.entry(holder.key).owner == holder.owner
