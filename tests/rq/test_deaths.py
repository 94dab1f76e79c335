"""A work horse, or its worker, dies between two steps."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
from rq import Retry
from rq.command import send_stop_job_command
from rq.job import Callback

from taskguard.rq.abandoned import find_abandoned
from tests.rq import jobs, slow
from tests.rq.scene import OURS, Scene
from tests.schedule.bench import every
from tests.waiting import wait_until

HASTY_OURS = "tests.rq.workers.HastyGuardedWorker"
DOOMED = "tests.rq.workers.DoomedWorker"


# -- before it claims, or after it has settled -------------------------------------------------------------------------


def _state_of_slow(scene: Scene) -> str | None:
    guard = slow.slow.taskguard.guard(scene.connection, scene.queue.serializer)
    entry = guard.store.get(slow.slow.taskguard.key(scene.key))
    return None if entry is None else str(entry.state)


def _importing(scene: Scene) -> Any:
    """A worker whose horse is still importing the module of its job."""
    worker = scene.start_worker(OURS, environment={slow.SLOW: "1"})
    scene.ledger.wait_for("import", 1)
    return worker


def test_a_horse_that_dies_before_it_claims(scene: Scene):
    job = scene.queue.enqueue(slow.slow, scene.key)
    os.kill(_importing(scene).horse(), signal.SIGKILL)

    scene.wait_for_status(job, "failed")
    assert _state_of_slow(scene) == "free" and scene.runs == 0


def test_a_horse_that_dies_before_it_claims_is_retried(scene: Scene):
    job = scene.queue.enqueue(slow.slow, scene.key, retry=Retry(max=1))
    os.kill(_importing(scene).horse(), signal.SIGKILL)

    assert scene.result(job) == scene.key
    assert _state_of_slow(scene) == "done" and scene.runs == 1


def test_a_job_that_is_stopped_before_it_claims(scene: Scene):
    job = scene.queue.enqueue(slow.slow, scene.key)
    _importing(scene)
    send_stop_job_command(scene.connection, job.id)

    scene.wait_for_status(job, "stopped")
    assert _state_of_slow(scene) == "free" and scene.runs == 0


def test_a_job_that_is_stopped_in_the_callback_of_a_failure(scene: Scene):
    """Its entry waits for the retry already, which will not come."""
    scene.start_worker()
    job = scene.call(then="fail", retry=Retry(max=2), on_failure=Callback(slow.told_slowly))
    scene.ledger.wait_for("told", 1)
    assert scene.state() == "queued"
    send_stop_job_command(scene.connection, job.id)

    scene.wait_for_status(job, "stopped")
    assert scene.state() == "free"
    scene.next_call_runs()


# -- between two steps -------------------------------------------------------------------------------------------------


def _doomed(scene: Scene, step: str) -> Any:
    return scene.start_worker(DOOMED, environment={"TASKGUARD_TEST_DOOM": step})


@pytest.mark.parametrize(
    ("step", "bodies"),
    [
        ("after claim", 1),
        ("after complete", 1),
        pytest.param("before claim", 1, marks=pytest.mark.faults),
        pytest.param("before complete", 2, marks=pytest.mark.faults),
        pytest.param("before requeue", 2, marks=pytest.mark.faults),
    ],
)
def test_a_horse_that_dies_between_two_steps(scene: Scene, step: str, bodies: int):
    then = "fail once" if step == "before requeue" else "return"
    job = scene.call("one_and_one", then, retry=Retry(max=2), value="kept")
    _doomed(scene, step)

    assert scene.result(job) == "kept"
    assert scene.ledger.count("doom") == 1 and scene.runs == bodies and not scene.overlaps
    scene.next_call_runs("one_and_one")


@pytest.mark.parametrize("step", [pytest.param("after claim", marks=pytest.mark.faults), "before complete"])
def test_a_horse_that_dies_between_two_steps_and_is_not_retried_frees_its_key(scene: Scene, step: str):
    job = scene.call("more", value="kept")
    _doomed(scene, step)
    scene.wait_for_status(job, "failed")

    scene.next_call_runs("more")


def test_a_large_result_of_a_horse_that_dies_before_rq_has_it_is_told_as_what_it_is(scene: Scene):
    job = scene.call(then="return much", retry=Retry(max=1))
    _doomed(scene, "after complete")
    scene.wait_for_status(job, "failed", "finished")

    assert scene.runs == 1  # it is not run again; that its result is gone is told
    assert "OutcomeNotKeptError" in job.latest_result().exc_string


def test_a_worker_that_dies_after_the_last_start_was_counted(scene: Scene):
    """RQ does not know yet that the job has failed for good, and would start it again."""
    scene.call("quick_once", then="die", retry=Retry(max=9), job_id=scene.key)
    worker = scene.start_worker("tests.rq.workers.DiesBeforeItFails")
    worker.wait()
    job = scene.queue.fetch_job(scene.key)
    assert scene.status(job) == "started" and scene.runs == 1
    scene.passes(3)
    scene.find_abandoned()
    scene.start_worker(HASTY_OURS)
    scene.wait_for_status(job, "failed")
    scene.passes(0.5)

    assert scene.runs == 1 and scene.queue.count == 0


def test_the_key_of_a_killed_horse_of_one_of_many_runs_is_free(scene: Scene):
    scene.start_worker()
    slot = every(3600, scene.key, overlap="allow_all").slot(1_794_873_600_000_000)
    job = scene.publish(slot, jobs.job_, scene.key, "return", "gate")
    scene.begun()
    [run] = scene.live()
    os.kill(scene.workers[0].horse(), signal.SIGKILL)
    scene.wait_for_status(job, "failed")

    assert scene.live() == [] and run.key.endswith(f":job:{run.owner}")


def test_a_later_execution_that_has_not_claimed_yet_is_not_taken_for_abandoned(scene: Scene):
    """Its worker imports the job's code; the entry is still that of the execution before, whose worker died."""
    job = scene.call("short", retry=Retry(max=2))
    guarded = jobs.short.taskguard
    guard = guarded.guard(scene.connection)
    owner = guard.store.get(scene.note(job).key).owner
    guard.ask(guard.new_claim(scene.note(job).key, owner, guarded.policy, attempt="dead", lease=0.05))
    registry, now = scene.queue.started_job_registry, time.time()
    scene.connection.zadd(registry.key, {f"{job.id}:dead": now + 90, f"{job.id}:alive": now + 90})
    wait_until(lambda: guard.store.get(scene.note(job).key).remaining <= 0)

    assert find_abandoned([scene.queue], "looking")
    assert scene.connection.zscore(registry.key, f"{job.id}:dead") == 1
    assert scene.connection.zscore(registry.key, f"{job.id}:alive") > now
