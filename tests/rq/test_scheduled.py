"""The job of a slot at its worker: what its schedule says of it, and how its slot ends."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import Any

import pytest

from taskguard import StoreUnavailableError
from taskguard.guard import Guard
from taskguard.protocol.store import Claim, Lease
from taskguard.rq.guarding import guard_on
from taskguard.schedule.running import claim_of
from taskguard.stores.redis import RedisStore
from tests.rq import jobs
from tests.rq.scene import Scene
from tests.schedule.bench import every

AT = 1_794_873_600_000_000
BECOMES = {"skip": "skipped", "buffer_one": "waits", "buffer_all": "waits", "allow_all": "runs"}
ENDS = {"skipped": ("free", "skipped"), "waits": ("queued", None), "runs": ("done", "succeeded")}


def run_twin(scene: Scene, name: str) -> Lease:
    guarded = getattr(jobs, name).taskguard
    guard = guarded.guard(scene.connection)
    lease = guard.store.claim(Claim(guarded.key(scene.key), "twin", "attempt", lease=60, keep_for=60))
    assert isinstance(lease, Lease)
    return lease


# -- another job has the key -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["quickly_held", "raises", "patient"])
@pytest.mark.parametrize(
    ("overlap", "becomes"),
    [("skip", "skipped"), ("buffer_one", "waits"), ("buffer_all", "waits"), ("allow_all", "runs")],
)
def test_overlap_wins_over_on_conflict(scene: Scene, name: str, overlap: str, becomes: str):
    run_twin(scene, name)
    slot = every(3600, scene.key, overlap=overlap).slot(AT)
    job = scene.publish(slot, getattr(jobs, name), scene.key)
    scene.work(max_jobs=1)

    run = scene.entry_of(slot.run_key)
    assert scene.status(job) == ("queued" if becomes == "waits" else "finished")
    assert scene.runs == (1 if becomes == "runs" else 0)
    assert (run.state, run.how) == ENDS[becomes]


def test_the_key_of_a_killed_horse_of_one_of_many_runs_is_free(scene: Scene):
    scene.start_worker()
    slot = every(3600, scene.key, overlap="allow_all").slot(AT)
    job = scene.publish(slot, jobs.job_, scene.key, "return", "gate")
    scene.begun()
    [run] = scene.live()
    os.kill(scene.workers[0].horse(), signal.SIGKILL)
    scene.wait_for_status(job, "failed")

    assert scene.live() == [] and run.key.endswith(f":job:{run.owner}")


# -- how its body ends -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [jobs.job_, jobs.plain])
@pytest.mark.parametrize("words", ["nothing to do", "put back into stock", "put back: later"])
def test_what_a_body_says_when_it_ends_does_not_decide_whether_it_comes_again(scene: Scene, function: Any, words: str):
    slot = every(3600, scene.key).slot(AT)
    job = scene.publish(slot, function, scene.key, "raise", None, words)
    scene.work(max_jobs=1)

    run = scene.entry_of(slot.run_key)
    assert scene.status(job) == "failed" and (run.state, run.how) == ("free", "failed")


@pytest.mark.parametrize("function", [jobs.job_, jobs.plain])
def test_a_scheduled_job_whose_token_is_refused_gets_a_higher_one(scene: Scene, function: Any):
    """The store has lost its data, say, and the resource has not."""
    slot = every(3600, scene.key).slot(AT)
    job = scene.publish(slot, function, scene.key, "be refused", None, 2**52)
    scene.work(max_jobs=1)
    assert scene.status(job) == "queued" and scene.entry_of(slot.run_key).state == "queued"
    scene.work(max_jobs=1)

    assert scene.status(job) == "finished" and scene.runs == 2
    assert scene.entry_of(slot.run_key).how == "succeeded"


# -- the store is away -----------------------------------------------------------------------------------------------


def away(*args: Any, **options: Any) -> Any:
    raise StoreUnavailableError("the store", "gone")


@pytest.mark.parametrize("function", [jobs.job_, jobs.plain])
def test_the_next_delivery_of_a_scheduled_job_knows_of_the_outage(
    scene: Scene, function: Any, monkeypatch: pytest.MonkeyPatch
):
    slot = every(3600, scene.key).slot(AT)
    job = scene.publish(slot, function, scene.key)
    monkeypatch.setattr(guard_on(scene.connection, scene.queue.serializer), "patience", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(RedisStore, "claim", away)
        scene.work(max_jobs=1)
    assert scene.note(job).after_outage
    asked, ask = [], Guard.ask
    monkeypatch.setattr(Guard, "ask", lambda *a, **o: asked.append(o["after_outage"]) or ask(*a, **o))  # type: ignore[func-returns-value]
    scene.work(max_jobs=1)

    assert scene.status(job) == "finished" and set(asked) == {True}


def test_the_store_goes_away_before_it_hears_that_a_slot_is_skipped(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    entry, guard = every(3600, scene.key, overlap="skip"), guard_on(scene.connection, scene.queue.serializer)
    queued = replace(claim_of(entry.slot(AT).note(), "another", 60), state="queued")
    assert isinstance(guard.store.claim(queued), Lease)
    job = scene.publish(entry.slot(AT + 3_600_000_000), jobs.plain, scene.key)
    monkeypatch.setattr(guard, "patience", 0.0)
    monkeypatch.setattr(RedisStore, "release", away)
    scene.work(max_jobs=1)

    assert scene.status(job) == "queued" and scene.note(job).after_outage and scene.runs == 0
