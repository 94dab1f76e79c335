"""Who may end a job: not one whose key another has; and somebody else, once its process is gone or it is given up."""

from __future__ import annotations

from typing import Any

import pytest

from taskguard.engine.settle import end_queued
from taskguard.protocol.store import Completed, Ending, Held, Lease
from tests.scenarios.queues import Queue

REVOKED = Ending(how="revoked", keep_for=60)


died_or_stopped = pytest.mark.parametrize(("is_stopped", "told"), [(False, "failed"), (True, "released")])


@died_or_stopped
def test_the_end_of_a_job_whose_process_is_gone_is_told_as_what_it_is(queue: Queue, is_stopped: bool, told: str):
    assert_ends(queue, is_stopped, told, has_begun=True)


@died_or_stopped
def test_a_job_whose_process_is_gone_before_it_claimed_leaves_its_place(queue: Queue, is_stopped: bool, told: str):
    assert_ends(queue, is_stopped, told, has_begun=False)


def assert_ends(queue: Queue, is_stopped: bool, told: str, *, has_begun: bool) -> None:
    events: list[Any] = []
    function = queue.function(listeners=[events.append])
    call = function.call(1)
    events.clear()
    queue.process_is_gone(function, call, has_begun=has_begun, is_stopped=is_stopped)

    assert [event.kind for event in events] == [told] and queue.entry(function.key(1)).state == "free"


def test_a_job_that_starts_while_it_is_being_ended_is_left_alone(queue: Queue, monkeypatch: pytest.MonkeyPatch):
    function = queue.function()
    function.call(1)
    guard, policy, entry = function.guard, function.taskguard.policy, queue.entry(function.key(1))
    start = guard.new_claim(entry.key, entry.owner, policy)
    monkeypatch.setattr(guard.store, "get", lambda key: (guard.ask(start), entry)[1])

    assert not end_queued(guard, entry.key, entry.owner, REVOKED)
    again = guard.ask(guard.new_claim(entry.key, entry.owner, policy))[1]
    assert isinstance(again, Held) and again.state == "running"


def test_a_job_that_is_ended_while_it_is_queued_has_its_receipt(queue: Queue):
    function = queue.function()
    function.call(1)
    guard, policy, entry = function.guard, function.taskguard.policy, queue.entry(function.key(1))

    assert end_queued(guard, entry.key, entry.owner, REVOKED)
    assert isinstance(guard.ask(guard.new_claim(entry.key, entry.owner, policy))[1], Completed)
    assert isinstance(guard.ask(guard.new_claim(entry.key, "another", policy))[1], Lease)


# -- by itself, when another one has its key -------------------------------------------------------------------------


def test_a_body_whose_end_is_refused_has_not_finished(queue: Queue):
    """Another job took its key while it ran, after a pause say: its own end counts for nothing, and it runs again."""
    holders: list[Lease] = []

    def lose() -> str:
        if holders:
            return "again"
        assert function.guard.store.forget(function.key(1))
        holders.append(function.hold())
        return "refused"

    function = queue.function(lose, on_lost="continue", on_conflict="wait")
    call = function.call(1)
    queue.work(1)
    assert queue.outcome(call).status == "queued" and queue.live() == [holders[0].owner]
    function.free(holders[0])
    queue.work()

    assert queue.outcome(call).value == "again" and len(queue.ran) == 2
