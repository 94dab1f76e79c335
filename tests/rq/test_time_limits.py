"""A job timeout that comes while the guard itself is at work: the job has failed, and holds nothing any more."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from rq import SimpleWorker

from taskguard.rq import GuardedSimpleWorker
from taskguard.stores.redis import RedisStore
from tests.rq import jobs
from tests.rq.scene import Scene
from tests.schedule.bench import every


@pytest.fixture
def time_is_over(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The timeout comes once: when the verb was carried out and has not answered yet, or *before* it is."""

    def at(verb: str, *, before: bool = False, after: int = 0) -> None:
        original, reached = getattr(RedisStore, verb), []

        def slow(store: Any, *args: Any, **options: Any) -> Any:
            reached.append(verb)
            if before and len(reached) == after + 1:
                os.kill(os.getpid(), signal.SIGALRM)
            answer = original(store, *args, **options)
            if not before and len(reached) == after + 1:
                os.kill(os.getpid(), signal.SIGALRM)
            return answer

        monkeypatch.setattr(RedisStore, verb, slow)

    return at


def assert_failed_for_good(scene: Scene, job: Any, name: str = "") -> None:
    """The key is free, and another copy of the job finds out that it has ended."""
    assert scene.status(job) == "failed"
    for part in ("", ":queue"):
        assert scene.state(name or "job_", part=part) in ("free", "done", None)
    runs = scene.runs
    scene.queue.push_job_id(job.id)
    scene.work(SimpleWorker if name else GuardedSimpleWorker)  # ours looks at its status, and does not ask at all
    assert scene.runs == runs


@pytest.mark.parametrize("before", [False, True])
def test_a_job_whose_time_is_over_while_it_leaves_its_place_in_the_queue(scene: Scene, time_is_over: Any, before: bool):
    job = scene.call("one_and_one")
    time_is_over("release", before=before)
    scene.work()

    assert scene.runs == 0
    assert_failed_for_good(scene, job, "one_and_one")


@pytest.mark.parametrize("before", [False, True])
def test_a_job_whose_time_is_over_while_the_store_hears_of_its_success(scene: Scene, time_is_over: Any, before: bool):
    """RQ calls it a failure; the guard knows that the body has run."""
    job = scene.call()
    time_is_over("complete", before=before)
    scene.work()

    assert scene.runs == 1 and scene.entry().how == "succeeded"
    assert_failed_for_good(scene, job, "job_")


@pytest.mark.parametrize("verb", ["claim", "complete"])
def test_a_plain_scheduled_task_whose_time_is_over(scene: Scene, time_is_over: Any, verb: str):
    slot = every(3600, scene.key).slot(1_794_873_600_000_000)
    job = scene.publish(slot, jobs.plain, scene.key)
    time_is_over(verb)
    scene.work()

    assert scene.entry_of(slot.run_key).state != "running"
    assert scene.runs == (0 if verb == "claim" else 1)
    assert_failed_for_good(scene, job)


@pytest.mark.parametrize("claims", [0, 1])
def test_a_guarded_scheduled_task_whose_time_is_over_while_it_claims(scene: Scene, time_is_over: Any, claims: int):
    """Its slot, or its own key, whichever it was just asking for."""
    slot = every(3600, scene.key).slot(1_794_873_600_000_000)
    job = scene.publish(slot, jobs.job_, scene.key)
    time_is_over("claim", after=claims)
    scene.work()

    assert scene.entry_of(slot.run_key).state == "free" and scene.runs == 0
    assert_failed_for_good(scene, job, "job_")
