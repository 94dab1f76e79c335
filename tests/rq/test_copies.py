"""A second copy of a job, beside the first or long after it."""

from __future__ import annotations

import time
from typing import Any

from rq.job import Callback

from tests.rq import jobs
from tests.rq.scene import Scene, mostly_ours
from tests.waiting import wait_until


def _seen_long_ago(scene: Scene, job: Any) -> None:
    """RQ gives a job a minute between the queue and its start, from when it is first seen there."""
    scene.connection.set(scene.queue.intermediate_queue.get_first_seen_key(job.id), time.time() - 120)
    scene.find_abandoned()


@mostly_ours
def test_a_second_copy_that_was_put_back_does_not_run_what_failed(scene: Scene, kind: str):
    job = scene.call("short", "fail", gate="gate")
    scene.queue.push_job_id(job.id)
    scene.start_worker(kind)
    scene.start_worker(kind)
    scene.begun()
    scene.passes(4)  # the other worker puts it back meanwhile
    scene.open()
    scene.wait_for_status(job, "failed")
    scene.passes(3)

    assert scene.runs == 1 and scene.queue.count == 0


def test_a_second_copy_that_waited_tells_nobody_again(scene: Scene):
    job = scene.call(gate="gate", value="kept", on_success=Callback(jobs.told))
    scene.start_worker()
    scene.begun()
    scene.queue.push_job_id(job.id)
    second = scene.start_worker()
    scene.wait_for_duplicate(job)
    second.pause()  # so that it looks again when RQ knows of the end, and not between that and the end itself
    scene.open()
    assert scene.result(job) == "kept"
    second.resume()
    second.wait_for_log("nothing to report")

    assert scene.ledger.count("told") == 1 and len(job.results()) == 1


def test_a_second_copy_waits_for_the_first_to_call_back(scene: Scene):
    """The store has the end, and RQ has not: the first delivery calls the callbacks before RQ records its result."""
    job = scene.call(gate="gate", value="kept", on_success=Callback(jobs.told_at_the_gate))
    scene.start_worker()
    scene.begun()
    scene.queue.push_job_id(job.id)
    second = scene.start_worker()
    scene.wait_for_duplicate(job)
    scene.open()
    scene.ledger.wait_for("telling", 1)
    second.wait_for_log("deferred: ")
    scene.open("callback")
    assert scene.result(job) == "kept"
    started = scene.queue.started_job_registry
    wait_until(lambda: scene.queue.count == 0 and started.get_job_count(cleanup=False) == 0)

    assert scene.ledger.count("telling") == 1 and len(job.results()) == 1


def test_a_leftover_copy_is_not_taken_for_stuck(scene: Scene):
    job = scene.call(value="kept")
    scene.queue.push_job_id(job.id)
    scene.burst()

    assert scene.queue.intermediate_queue.get_job_ids() == []
    assert scene.result(job) == "kept" and scene.runs == 1


def test_a_leftover_copy_that_a_worker_took_along_when_it_died(scene: Scene):
    job = scene.call(value="kept")
    scene.burst()
    scene.connection.lpush(scene.queue.intermediate_queue_key, job.id)
    _seen_long_ago(scene, job)
    scene.burst()

    assert scene.queue.intermediate_queue.get_job_ids() == []
    assert scene.result(job) == "kept" and scene.runs == 1
