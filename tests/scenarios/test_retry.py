"""A job that its queue starts again: the key is its own meanwhile, and its token rises."""

from __future__ import annotations

from typing import Any

import pytest

from taskguard import current_fence
from tests.scenarios.queues import Queue

each_way = pytest.mark.parametrize("way", ["asked for", "after a failure"])


class Body:
    """Wants to be started again until it was started often enough; writes down its fences."""

    def __init__(self, queue: Queue, way: str, starts: int = 2) -> None:
        self.queue = queue
        self.way = way
        self.starts = starts
        self.fences: list[Any] = []

    def __call__(self) -> Any:
        self.fences.append(current_fence())
        if len(self.fences) == self.starts:
            return "at last"
        if self.way == "asked for":
            return self.queue.again()
        raise ValueError("not yet")


@each_way
def test_a_retry_keeps_the_key_meanwhile(queue: Queue, way: str):
    function = queue.function(Body(queue, way), **queue.retries(1))
    call = function.call(1)
    queue.work(1)
    entry = queue.entry(function.key(1))
    assert (entry.state, entry.owner) == ("queued", queue.owner(call))
    duplicate = function.call(1)
    assert duplicate.id == call.id and duplicate.taskguard.duplicate
    queue.work()

    assert queue.outcome(call).value == "at last" and len(queue.ran) == 2 and queue.live() == []


@each_way
def test_a_retry_has_a_higher_token_and_is_no_death(queue: Queue, way: str):
    body = Body(queue, way)
    call = queue.function(body, **queue.retries(1)).call(1)
    queue.work()
    first, second = body.fences

    assert first.token < second.token and [first.starts, second.starts] == [1, 1]
    assert first.idempotency_key == second.idempotency_key and first.idempotency_key.startswith(call.id)


@each_way
def test_when_retries_are_used_up_the_key_is_free(queue: Queue, way: str):
    function = queue.function(Body(queue, way, starts=9), **queue.retries(1))
    call = function.call(1)
    queue.work()

    assert queue.outcome(call).status == "failed" and len(queue.ran) == 2
    assert queue.entry(function.key(1)).state == "free" and not function.call(1).taskguard.duplicate


@each_way
def test_another_copy_of_a_job_that_waits_for_its_retry_does_not_run_beside_it(queue: Queue, way: str):
    body = Body(queue, way)
    function = queue.function(body, **queue.retries(1))
    call = function.call(1)
    queue.work(1)
    queue.copy(call)
    queue.work()

    assert queue.outcome(call).value == "at last" and len(queue.ran) == 2 and queue.ids == []
