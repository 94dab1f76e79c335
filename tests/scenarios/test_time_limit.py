"""A job whose time is over while the guard itself is at work: it has failed, and holds nothing any more."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.scenarios.queues import Queue
from tests.schedule.bench import every

AT = 1_794_873_600_000_000
both_moments = pytest.mark.parametrize("before", [False, True])


def assert_failed_for_good(queue: Queue, call: Any, *, plain: bool = True) -> None:
    """The key is free, and another copy of the message finds out that the job has ended."""
    assert queue.outcome(call).status == "failed" and queue.ids == [] and queue.live() == []
    runs = list(queue.ran)
    queue.copy(call)
    queue.work(plain=plain)
    assert queue.ran == runs and queue.ids == []


@both_moments
@pytest.mark.parametrize("on_done", ["rerun", "reuse"])
def test_a_job_whose_time_is_over_before_it_has_the_answer_to_its_claim(queue: Queue, on_done: str, before: bool):
    call = queue.function(on_done=on_done, keep_for=600).leave(1)
    queue.time_is_over("claim", before=before)
    queue.work()

    assert not queue.ran
    assert_failed_for_good(queue, call)


@both_moments
def test_a_job_whose_time_is_over_while_it_leaves_its_place_in_the_queue(queue: Queue, before: bool):
    call = queue.function(hold="one_queued_one_running").call(1)
    queue.time_is_over("release", before=before)
    queue.work()

    assert not queue.ran
    assert_failed_for_good(queue, call)


@both_moments
def test_a_job_whose_time_is_over_while_the_store_hears_of_its_success(queue: Queue, before: bool):
    """The queue calls it a failure; the guard knows that the body has run."""
    function = queue.function()
    call = function.call(1, "ran")
    queue.time_is_over("complete", before=before)
    queue.work()

    assert queue.ran == ["ran"] and queue.entry(function.key(1)).how == "succeeded"
    assert_failed_for_good(queue, call)


def test_a_body_that_is_ended_by_its_time_limit_is_told_once(queue: Queue):
    events: list[str] = []
    function = queue.function(
        lambda: os.kill(os.getpid(), queue.limit), listeners=[lambda event: events.append(event.kind)]
    )
    call = function.leave(1)
    queue.work()

    assert queue.outcome(call).status == "failed" and events == ["claimed", "failed"]


@pytest.mark.parametrize("verb", ["claim", "complete"])
def test_a_plain_scheduled_task_whose_time_is_over(queue: Queue, verb: str):
    function = queue.plain()
    slot = every(3600, function.task.__name__).slot(AT)
    call = queue.publish(slot, function, 1)
    queue.time_is_over(verb)
    queue.work()

    assert queue.entry(slot.run_key).state != "running"
    assert len(queue.ran) == (0 if verb == "claim" else 1)
    assert_failed_for_good(queue, call, plain=False)


@pytest.mark.parametrize("claims", [1, 2])
def test_a_guarded_scheduled_task_whose_time_is_over_while_it_claims(queue: Queue, claims: int):
    """Its slot, or its own key, whichever it was just asking for."""
    function = queue.function()
    slot = every(3600, function.task.__name__).slot(AT)
    call = queue.publish(slot, function, 1)
    queue.time_is_over("claim", at=claims)
    queue.work()

    assert not queue.ran and queue.entry(slot.run_key).state == "free"
    assert_failed_for_good(queue, call)
