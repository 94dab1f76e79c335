"""What is settled for a queued job by somebody who does not run it: its queue has given it up."""

from __future__ import annotations

import pytest

from taskguard.engine.drive import end_queued
from taskguard.protocol.store import Completed, Ending, Held, Lease
from tests.scenarios.queues import Queue

REVOKED = Ending(how="revoked", keep_for=60)


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
