"""Moments in which a job could be lost, doubled or blocked, and what was chosen there; real workers again."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from rq import Queue, Retry
from rq.job import Job
from rq.registry import FailedJobRegistry

from taskguard.engine.drive import end_queued
from taskguard.protocol.store import Completed, Ending, Held, Lease
from taskguard.rq import twin
from tests.rq import jobs
from tests.rq.scene import Scene, both_workers

HASTY_OURS = "tests.rq.workers.HastyGuardedWorker"


# -- a call that is on its way ---------------------------------------------------------------------------------------


def test_a_caller_whose_clock_is_ahead_takes_nobodys_place(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    pipeline = scene.connection.pipeline()
    coming = scene.call(pipeline=pipeline)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 600)
    monkeypatch.setattr(twin, "APPEARS_WITHIN", 10.0)  # a busy machine takes its time
    with ThreadPoolExecutor() as pool:
        call = pool.submit(scene.call)
        scene.passes(0.3)
        pipeline.execute()

    assert call.result().id == coming.id and scene.queue.job_ids == [coming.id]


# -- a body that replaces its job's meta -------------------------------------------------------------------------------


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


# -- dependencies ------------------------------------------------------------------------------------------------------


def test_a_twin_behind_a_job_that_failed_is_replaced_and_runs_if_its_turn_comes_after_all(scene: Scene):
    parent = scene.call(key=f"{scene.key}-parent", then="fail once")
    middle = scene.call(key=f"{scene.key}-middle", depends_on=parent)
    child = scene.call(depends_on=middle, value="child")
    assert scene.call().id == child.id
    scene.burst()
    assert scene.status(child) == "deferred" and scene.state() == "queued"
    taken = scene.call(value="instead")

    assert taken.id != child.id and not taken.taskguard.duplicate
    scene.burst()
    assert scene.result(taken) == "instead"
    FailedJobRegistry(queue=scene.queue).requeue(parent.id)
    scene.burst()
    assert scene.result(child) == "child" and scene.runs == 2


def test_a_twin_behind_a_job_that_was_deleted_is_replaced(scene: Scene):
    parent = scene.call(key=f"{scene.key}-parent")
    child = scene.call(depends_on=parent)
    parent.delete()

    assert scene.call().id != child.id


def test_a_twin_that_allows_its_parent_to_fail_keeps_its_place(scene: Scene):
    from rq.job import Dependency

    parent = scene.call(key=f"{scene.key}-parent", then="fail", gate="gate")
    child = scene.call(depends_on=Dependency(jobs=[parent], allow_failure=True), value="child")
    scene.start_worker()
    scene.begun(key=f"{scene.key}-parent")
    assert scene.call().id == child.id
    scene.open()

    assert scene.result(child) == "child" and scene.runs == 1


# -- one more run, and the next occurrence -----------------------------------------------------------------------------


def test_run_once_more_after_a_job_that_rq_has_given_up(scene: Scene):
    scene.start_worker(), scene.start_worker()
    job = scene.call("more", gate="gate", value="first")
    scene.begun()
    job.cancel()
    newest = scene.call("more", value="newest")
    scene.passes(0.5)
    scene.open()

    assert scene.result(newest) == "newest"
    assert scene.runs == 2 and not scene.overlaps


@both_workers
@pytest.mark.parametrize("workers", [1, 2])
def test_an_occurrence_that_is_enqueued_while_the_one_before_runs(scene: Scene, kind: str, workers: int):
    """rq-scheduler does not look whether the one before has ended."""
    for _ in range(workers):
        scene.start_worker(kind)
    queue = Queue(scene.queue.name, connection=scene.connection)
    options: Any = {"kwargs": {"value": 1, "gate": "gate"}, "connection": scene.connection, "meta": {"interval": 60}}
    job = Job.create(jobs.waits, (scene.key,), **options)
    queue.enqueue_job(job)
    scene.begun()
    queue.enqueue_job(scene.fetch(job))
    scene.passes(0.5)
    scene.open()
    scene.ended(2)
    scene.wait_for_status(job, "finished")

    assert scene.runs == 2 and not scene.overlaps and scene.queue.count == 0


# -- failures that are kept --------------------------------------------------------------------------------------------


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


# -- between two writes ------------------------------------------------------------------------------------------------


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


def test_a_note_does_not_bring_a_deleted_job_back(scene: Scene):
    from taskguard.rq.guarded_job import noted

    job = noted(scene.call())
    job.delete()
    job.note_end(for_good=True)
    job.save_note()

    assert not scene.connection.exists(job.key)


def test_the_end_of_a_later_enqueueing_is_not_taken_back(scene: Scene):
    from taskguard.rq.guarded_job import ENDED, noted

    job = noted(scene.call())
    job.note_end()
    late = job.enqueueing
    job.enqueued_at = job.created_at
    job.note_end()

    assert scene.connection.hget(job.key, ENDED) == late.encode()


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
