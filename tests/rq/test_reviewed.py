"""Rare moments: a horse that dies before it claims, a second copy, a pipeline that is tried again, an id used twice."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from rq import Queue, Repeat, Retry
from rq.command import send_stop_job_command
from rq.job import Callback

from taskguard.rq import GuardedQueue, GuardedSimpleWorker, GuardedWorker, twin
from tests.rq import jobs, slow
from tests.rq.scene import OURS, Scene, both_workers, mostly_ours
from tests.waiting import wait_until


def _seen_long_ago(scene: Scene, job: Any) -> None:
    """RQ gives a job a minute between the queue and its start, from when it is first seen there."""
    scene.connection.set(scene.queue.intermediate_queue.get_first_seen_key(job.id), time.time() - 120)
    scene.find_abandoned()


# -- a horse that dies before it claims, or after it has settled -------------------------------------------------------


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


# -- a second copy -----------------------------------------------------------------------------------------------------


def test_a_job_found_stuck_by_the_worker_that_ran_its_id_before(scene: Scene):
    worker = GuardedWorker([scene.queue], connection=scene.connection)
    scene.call(job_id=scene.key)
    worker.work(burst=True)
    job = scene.call(job_id=scene.key)
    scene.connection.lmove(scene.queue.key, scene.queue.intermediate_queue_key)  # another worker took it, and died
    _seen_long_ago(scene, job)
    scene.queue.intermediate_queue.cleanup(worker, scene.queue)

    assert scene.status(job) == "failed" and scene.state() == "free"


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


@both_workers
@pytest.mark.parametrize("how", ["cancel", "delete"])
def test_a_job_that_is_given_up_while_it_waits_in_its_horse(scene: Scene, how: str, kind: str):
    scene.start_worker(kind)
    scene.start_worker(kind)
    scene.call("waits", gate="gate")
    scene.begun()
    job = scene.call("waits")
    scene.wait_for_status(job, "started")
    getattr(scene.fetch(job), how)()
    wait_until(lambda: len(scene.idle_workers) == 1, what="the end of it")
    scene.open()
    scene.ended()
    scene.passes(1)

    assert scene.status(job) == ("canceled" if how == "cancel" else None)
    assert scene.runs == 1 and scene.queue.count == 0
    assert how == "cancel" or not scene.connection.exists(job.key)


# -- a lease, and a name -----------------------------------------------------------------------------------------------


@mostly_ours
def test_a_body_that_holds_longer_than_it_may_is_not_run_for_ever(scene: Scene, kind: str):
    scene.start_worker(kind)
    job = scene.call("brief", gate="never")
    scene.wait_for_status(job, "failed", within=30)

    assert scene.runs == 3 and [line["starts"] for line in scene.begun(3)] == [1, 2, 3]
    assert "TooManyStartsError" in job.latest_result().exc_string


def test_each_repetition_has_an_idempotency_key_of_its_own(scene: Scene):
    scene.call(then="fail once", retry=Retry(max=1), repeat=Repeat(times=1))
    scene.work()
    first, retried, second = (line["fenced"] for line in scene.begun(3))

    assert first == retried != second


def test_each_call_with_a_name_has_an_idempotency_key_of_its_own(scene: Scene):
    job = scene.call(then="fail", job_id=scene.key)
    scene.work()
    scene.fetch(job).requeue()
    scene.work()
    scene.call(job_id=scene.key)
    scene.work()
    first, requeued, second = (line["fenced"] for line in scene.begun(3))

    assert first == requeued != second


# -- a pipeline --------------------------------------------------------------------------------------------------------


def test_a_pipeline_that_is_tried_again(scene: Scene):
    """A job is enqueued with a change of the caller's own, and somebody changes the same."""
    tried = []

    def change(pipeline: Any) -> None:
        pipeline.multi()
        tried.append(scene.call(value=len(tried), pipeline=pipeline))
        if len(tried) == 1:
            scene.connection.set(scene.key, "changed")

    scene.connection.transaction(change, scene.key)
    first, second = tried

    assert not second.taskguard.duplicate and scene.status(first) is None
    scene.work()
    assert scene.result(second) == 1 and scene.runs == 1


def test_a_pipeline_that_is_used_again(scene: Scene):
    pipeline = scene.connection.pipeline()
    first = scene.call(pipeline=pipeline)
    pipeline.execute()
    scene.fetch(first).delete()
    second = scene.call(pipeline=pipeline)
    pipeline.execute()

    assert not second.taskguard.duplicate and scene.status(second) == "queued"


# -- an id that is used again ------------------------------------------------------------------------------------------


def test_a_call_with_a_name_that_is_on_its_way_is_not_judged_by_the_one_before(scene: Scene):
    """The record that RQ has under that id is of a call that finished; the next one is claimed, and not yet there."""
    scene.call(value="before", job_id=scene.key)
    scene.work()
    pipeline = scene.connection.pipeline()
    coming = scene.call(value="coming", job_id=scene.key, pipeline=pipeline)
    with ThreadPoolExecutor() as pool:
        other = GuardedQueue(scene.queue.name, connection=scene.connection)
        call = pool.submit(other.enqueue, jobs.job_, scene.key, value="second", job_id=scene.key)
        scene.passes(0.3)
        pipeline.execute()
        second = call.result()

    assert second.taskguard.duplicate and second.id == coming.id
    scene.work()
    assert scene.result(coming) == "coming" and scene.runs == 2


def test_a_call_with_a_name_that_came_too_late(scene: Scene):
    """Another one has taken its place, and then its record was written over that one's."""
    scene.call("short", job_id=scene.key)
    scene.work()
    pipeline = scene.connection.pipeline()
    late = scene.call("short", value="late", job_id=scene.key, pipeline=pipeline)
    other = GuardedQueue(scene.queue.name, connection=scene.connection)
    other.enqueue(jobs.short, scene.key, value="second", job_id=scene.key)
    pipeline.execute()
    scene.start_worker()

    assert scene.result(late) == "late"


def test_an_outcome_is_not_taken_from_another_call_with_the_same_name(scene: Scene):
    scene.call("reused", value="mine", job_id=f"name-{scene.key}")
    scene.work()
    scene.call("reused", key=f"{scene.key}-other", value="another's", job_id=f"name-{scene.key}")
    scene.work()
    again = scene.call("reused")

    assert again.taskguard.duplicate and again.return_value() == "mine"


def test_a_success_that_rq_could_not_tell_is_a_success(scene: Scene):
    job = scene.call("reused_success", value="kept", on_success=Callback("tests.rq.jobs.missing"))
    scene.burst()
    assert scene.status(job) == "failed"
    again = scene.call("reused_success")

    assert again.taskguard.duplicate and again.get_status() == "finished" and again.return_value() == "kept"


# -- twins that do not come --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cancel", "delete"])
@pytest.mark.parametrize("is_joined", [True, False])
def test_the_newest_of_run_once_more_is_given_up(scene: Scene, how: str, is_joined: bool):
    scene.start_worker()
    scene.start_worker()
    scene.call("more", gate="gate", value="first")
    scene.begun()
    replaced = scene.call("more", value="replaced")
    newest = scene.call("more", value="newest")
    assert not newest.taskguard.duplicate
    if is_joined:
        scene.connection.lrem(scene.queue.key, 0, newest.id)  # so that it stays queued
        scene.open()
        scene.ended()
        scene.passes(2)
        assert scene.status(replaced) in ("queued", "started")
    getattr(scene.fetch(newest), how)()
    scene.open()

    assert scene.result(replaced) == "replaced" and scene.runs == 2


def test_a_job_behind_one_that_a_worker_took_along_enqueues_it(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(twin, "LOST_AFTER", 0.0)
    lost = scene.call(value="lost")
    scene.connection.lrem(scene.queue.key, 0, lost.id)
    behind = Queue(scene.queue.name, connection=scene.connection).enqueue(jobs.job_, scene.key, value="behind")
    GuardedSimpleWorker([scene.queue], connection=scene.connection).work(burst=True, max_jobs=5)

    assert scene.result(lost) == "lost" and scene.status(behind) == "finished"


# -- told once, and from the beginning ---------------------------------------------------------------------------------


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
    second.wait_for_log("nothing to tell")

    assert scene.ledger.count("told") == 1 and len(job.results()) == 1


def test_a_job_that_waited_too_long_waits_anew_when_it_is_requeued(scene: Scene):
    scene.start_worker()
    scene.start_worker()
    scene.call("impatient", gate="gate")
    scene.begun()
    job = scene.call("impatient", value="at last", job_timeout=1)  # so that it is put back before its time is over
    scene.wait_for_status(job, "failed")

    assert scene.note(job).since == 0
    scene.fetch(job).requeue()
    scene.passes(0.3)
    scene.open()
    assert scene.result(job) == "at last"
