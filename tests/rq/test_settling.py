"""What is settled for a job that RQ has given up, by somebody who does not run it."""

from __future__ import annotations

import pytest

from taskguard.engine.drive import end_queued
from taskguard.store import Completed, Ending, Held, Lease
from tests.rq import jobs
from tests.rq.scene import Scene


def test_a_job_that_starts_while_it_is_being_ended_is_left_alone(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    scene.call(job_id="given-up")
    guarded = jobs.job_.taskguard
    guard = guarded.guard(scene.connection, scene.queue.serializer)
    entry = guard.store.get(guarded.key(scene.key))
    start = guard.new_claim(entry.key, entry.owner, guarded.policy)
    monkeypatch.setattr(guard.store, "get", lambda key: (guard.ask(start), entry)[1])
    ending = Ending(how="revoked", keep_for=60)

    assert not end_queued(guard, entry.key, entry.owner, ending)
    again = guard.ask(guard.new_claim(entry.key, entry.owner, guarded.policy))[1]
    assert isinstance(again, Held) and again.state == "running"


def test_a_job_that_is_ended_while_it_is_queued_has_its_receipt(scene: Scene):
    scene.call()
    guarded = jobs.job_.taskguard
    guard = guarded.guard(scene.connection, scene.queue.serializer)
    entry = guard.store.get(guarded.key(scene.key))

    assert end_queued(guard, entry.key, entry.owner, Ending(how="revoked", keep_for=60))
    assert isinstance(guard.ask(guard.new_claim(entry.key, entry.owner, guarded.policy))[1], Completed)
    assert isinstance(guard.ask(guard.new_claim(entry.key, "rq:other", guarded.policy))[1], Lease)
