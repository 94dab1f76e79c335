"""What the guard writes down with a job, and what a body writes to its `meta`: neither takes the other's away."""

from __future__ import annotations

from rq import Retry

from taskguard.rq.guarded_job import ENDED, as_guarded_job
from tests.rq.scene import Scene, both_workers


@both_workers
def test_a_body_that_replaces_the_meta_does_not_lose_its_name(scene: Scene, kind: str):
    scene.start_worker(kind)
    job = scene.call(then="replace the meta and fail once", job_id=scene.key, retry=Retry(max=1), value="second")

    assert scene.result(job) == "second" and scene.runs == 2
    assert scene.fetch(job).meta == {"mine": 1} and scene.state() == "done"


def test_nor_if_its_horse_dies(scene: Scene):
    scene.start_worker()
    job = scene.call("one_and_one", then="replace the meta and die once", job_id=scene.key, retry=Retry(max=1), value=2)

    assert scene.result(job) == 2 and scene.runs == 2
    scene.next_call_runs("one_and_one")


def test_nor_if_it_is_requeued_by_hand(scene: Scene):
    job = scene.call(then="replace the meta and fail once", idempotency_key=f"order-{scene.key}", value="second")
    scene.burst()
    scene.fetch(job).requeue()
    scene.burst()

    assert scene.result(job) == "second"
    assert {line["fenced"] for line in scene.begun(2)} == {f"order-{scene.key}"}


def test_the_meta_of_a_job_is_its_callers(scene: Scene):
    job = scene.call(meta={"mine": 1}, idempotency_key="order")

    assert job.meta == scene.fetch(job).meta == {"mine": 1}


def test_a_note_does_not_bring_a_deleted_job_back(scene: Scene):
    job = as_guarded_job(scene.call())
    job.delete()
    job.record_end(for_good=True)
    job.save_envelope()

    assert not scene.connection.exists(job.key)


def test_the_end_of_a_later_enqueueing_is_not_taken_back(scene: Scene):
    job = as_guarded_job(scene.call())
    job.record_end()
    late = job.enqueueing
    job.enqueued_at = job.created_at
    job.record_end()

    assert scene.connection.hget(job.key, ENDED) == late.encode()
