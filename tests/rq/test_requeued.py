"""A job that somebody requeues after its end: it runs again, or is answered."""

from __future__ import annotations

from rq.command import send_stop_job_command
from rq.registry import FailedJobRegistry

from tests.rq import jobs
from tests.rq.scene import OURS, PLAIN, Scene, both_workers


@both_workers
def test_a_failed_job_that_is_requeued_runs_again(scene: Scene, kind: str):
    scene.start_worker(kind)
    job = scene.call(then="fail once", value="second")
    scene.wait_for_status(job, "failed")
    FailedJobRegistry(queue=scene.queue).requeue(job.id)

    assert scene.result(job) == "second" and scene.runs == 2


def test_a_stopped_job_that_is_requeued_runs_again(scene: Scene):
    scene.start_worker(OURS)
    job = scene.call(gate="gate", value="second")
    scene.begun()
    send_stop_job_command(scene.connection, job.id)
    scene.wait_for_status(job, "stopped")
    scene.open()
    FailedJobRegistry(queue=scene.queue).requeue(job.id)

    assert scene.result(job) == "second" and scene.runs == 2


def test_a_job_that_finished_and_is_requeued_is_answered(scene: Scene):
    """RQ takes it for abandoned, and somebody puts it back: its body had finished."""
    job = scene.call(value="kept")
    scene.start_worker("tests.rq.workers.DiesAfterTheBody").wait()
    scene.passes(3)
    scene.find_abandoned()
    scene.start_worker(PLAIN)
    scene.wait_for_status(job, "failed")
    FailedJobRegistry(queue=scene.queue).requeue(job.id)

    assert scene.result(job) == "kept" and scene.runs == 1


def test_a_requeued_job_meets_a_twin_and_joins_it(scene: Scene):
    scene.start_worker()
    job = scene.call(then="fail once")
    scene.wait_for_status(job, "failed")
    twin = scene.call(gate="gate", value="of the twin")
    scene.begun(2)
    FailedJobRegistry(queue=scene.queue).requeue(job.id)
    scene.start_worker().wait_for_log("reused: ")  # its own failure, which does not count any more: it asks again
    scene.passes(1)
    scene.open()

    assert scene.result(twin) == "of the twin" and scene.result(job) == "of the twin"
    assert scene.runs == 2


def test_a_failure_that_is_reused_and_requeued_runs_again(scene: Scene):
    scene.start_worker()
    job = scene.call("reused", then="fail once", value="second")
    scene.wait_for_status(job, "failed")
    assert scene.call("reused").taskguard.state == "done"
    scene.fetch(job).requeue()

    assert scene.result(job) == "second" and scene.runs == 2
    again = scene.call("reused")
    assert again.taskguard.duplicate and again.get_status() == "finished" and scene.state("reused") == "done"


def test_a_failure_that_is_reused_and_requeued_gets_the_success_that_came_since(scene: Scene):
    scene.start_worker()
    job = scene.call("reused", then="fail once", value="mine")
    scene.wait_for_status(job, "failed")
    assert jobs.reused.taskguard.guard(scene.connection, scene.queue.serializer).store.forget(
        jobs.reused.taskguard.key(scene.key)
    )
    other = scene.call("reused", value="other")
    assert scene.result(other) == "other"
    scene.fetch(job).requeue()

    assert scene.result(job) == "other" and scene.runs == 2
