"""Everything RQ does to a job, and what becomes of its entry: real workers on a real Redis."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from rq import Queue, Repeat, Retry
from rq.command import send_stop_job_command
from rq.job import Callback, Job
from rq.registry import FailedJobRegistry

from taskguard.rq import GuardedWorker
from taskguard.rq.guarded_job import ENVELOPE_FIELD
from taskguard.rq.job_metadata import written
from tests.rq import jobs
from tests.rq.scene import OURS, PLAIN, Scene, both_workers, mostly_ours
from tests.waiting import wait_until

HASTY = "tests.rq.workers.HastyWorker"
HASTY_OURS = "tests.rq.workers.HastyGuardedWorker"
SCHEDULER = "--with-scheduler"


def results(job: Any) -> list[str]:
    return [result.type.name for result in job.results()]


def _seen_long_ago(scene: Scene, job: Any) -> None:
    """RQ gives a job a minute between the queue and its start, from when it is first seen there."""
    scene.connection.set(scene.queue.intermediate_queue.get_first_seen_key(job.id), time.time() - 120)
    scene.find_abandoned()


# -- a body and its end ------------------------------------------------------------------------------------------------


@both_workers
def test_a_body_that_exits_has_failed(scene: Scene, kind: str):
    scene.start_worker(kind)
    job = scene.call(then="exit")
    scene.wait_for_status(job, "failed")

    assert scene.state() == "free"
    scene.next_call_runs()


@both_workers
def test_the_time_of_the_job_is_over(scene: Scene, kind: str):
    scene.start_worker(kind)
    job = scene.call(then="sleep", job_timeout=1)
    scene.wait_for_status(job, "failed")

    assert "JobTimeoutException" in job.latest_result().exc_string
    assert scene.ledger.lines("failed", key=scene.key)[0]["error"] == "JobTimeoutException"
    assert scene.state() == "free"
    scene.next_call_runs()


# -- again -------------------------------------------------------------------------------------------------------------


def test_a_job_that_waits_for_its_retry_is_still_a_twin(scene: Scene):
    scene.start_worker(OURS, SCHEDULER)
    job = scene.call(then="fail once", retry=Retry(max=1, interval=2), value="second")
    scene.wait_for_status(job, "scheduled")
    again = scene.call()

    assert again.id == job.id and again.taskguard.duplicate and scene.state() == "queued"
    assert scene.result(job) == "second" and scene.runs == 2


def test_retries_are_used_up(scene: Scene):
    scene.start_worker()
    job = scene.call(then="fail", retry=Retry(max=1))
    scene.wait_for_status(job, "failed")

    assert scene.runs == 2 and scene.state() == "free"
    scene.next_call_runs()


def test_an_interval_needs_a_scheduler(scene: Scene):
    scene.start_worker()
    job = scene.call(then="fail once", retry=Retry(max=1, interval=1))
    scene.wait_for_status(job, "scheduled")
    scene.passes(1.5)

    assert scene.status(job) == "scheduled" and scene.state() == "queued"  # as without a guard


@both_workers
def test_a_returned_retry(scene: Scene, kind: str):
    scene.start_worker(kind)
    job = scene.call(then="return Retry once", value="second")

    assert scene.result(job) == "second"
    assert scene.runs == 2 and not scene.overlaps
    assert scene.fetch(job).number_of_retries == 1


def test_a_returned_retry_with_an_interval(scene: Scene):
    scene.start_worker(OURS, SCHEDULER)
    job = scene.call(then="return Retry in a second", value="second")
    scene.wait_for_status(job, "scheduled")
    assert scene.state() == "queued" and scene.call().id == job.id

    assert scene.result(job) == "second" and scene.runs == 2


@both_workers
def test_returned_retries_are_used_up(scene: Scene, kind: str):
    scene.start_worker(kind)
    job = scene.call(then="return Retry for ever")
    scene.wait_for_status(job, "failed")

    assert scene.runs == 2 and scene.state() == "free"
    scene.next_call_runs()


@both_workers
def test_repeat(scene: Scene, kind: str):
    scene.start_worker(kind)
    job = scene.call(repeat=Repeat(times=2), value="again")
    begun = scene.begun(3)
    wait_until(lambda: len(results(job)) == 3, what=f"{results(job)}")

    assert {line["job_id"] for line in begun} == {job.id} and not scene.overlaps
    scene.passes(0.5)
    assert scene.runs == 3
    scene.next_call_runs()


def test_a_repetition_meets_a_twin(scene: Scene):
    scene.start_worker(), scene.start_worker()
    repeated = scene.call("while_running", repeat=Repeat(times=2), value="repeated")
    twin = scene.call("while_running", value="twin")
    assert scene.result(twin) in ("twin", "repeated")
    wait_until(lambda: len(repeated.results()) == 3, what="three ends")

    assert not scene.overlaps and scene.state("while_running") == "done"


def test_an_occurrence_that_finished_is_not_run_again_and_the_next_one_is(scene: Scene):
    """A job of `Repeat` whose worker dies before RQ knows that the first one finished."""
    job = scene.call(repeat=Repeat(times=1), retry=Retry(max=1), value="kept")
    scene.start_worker("tests.rq.workers.DiesAfterTheBody").wait()
    assert scene.state() == "done"
    scene.passes(3)
    scene.find_abandoned()
    scene.start_worker(OURS)
    scene.begun(2)
    wait_until(lambda: results(job) == ["SUCCESSFUL"] * 2, what=f"{results(job)}")

    assert scene.runs == 2  # one for each occurrence


def test_what_a_scheduler_enqueues_time_after_time_runs_each_time(scene: Scene):
    """rq-scheduler keeps one job and enqueues it again and again."""
    scene.start_worker()
    job = Job.create(jobs.job_, (scene.key,), {"value": 1}, connection=scene.connection, meta={"interval": 60})
    for n in (1, 2, 3):
        scene.queue.enqueue_job(job)
        scene.begun(n)
        scene.wait_for_status(job, "finished")
        job = scene.fetch(job)

    assert scene.runs == 3
    assert len({line["token"] for line in scene.begun(3)}) == 3


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


# -- never, or not yet -------------------------------------------------------------------------------------------------


def test_cancelled(scene: Scene):
    cancelled = scene.call()
    cancelled.cancel()
    assert scene.state() == "queued"  # no hook is called
    taken = scene.call(value="instead")

    assert taken.id != cancelled.id and not taken.taskguard.duplicate
    scene.start_worker()
    assert scene.result(taken) == "instead" and scene.runs == 1


def test_cancelled_while_it_runs(scene: Scene):
    scene.start_worker()
    job = scene.call(gate="gate")
    scene.begun()
    job.cancel()
    again = scene.call(value="after")

    assert again.id != job.id and again.taskguard.duplicate  # RQ has given it up, its body has not ended
    scene.open()
    scene.ended()
    scene.start_worker()
    scene.wait_for_status(again, "finished")
    assert scene.runs == 1 and not scene.overlaps  # it ends as the one that ran


def test_deleted(scene: Scene):
    deleted = scene.call()
    deleted.delete()
    taken = scene.call(value="instead")

    assert taken.id != deleted.id
    scene.start_worker()
    assert scene.result(taken) == "instead" and scene.runs == 1


def test_deferred(scene: Scene):
    parent = scene.call(key=f"{scene.key}-parent", gate="gate")
    job = scene.call(depends_on=parent, value="child")
    again = scene.call()

    assert scene.status(job) == "deferred" and scene.state() == "queued"
    assert again.id == job.id and again.taskguard.duplicate
    scene.start_worker()
    scene.open()
    assert scene.result(job) == "child" and scene.runs == 1


def test_a_dependent_that_is_cancelled_leaves_its_place(scene: Scene):
    parent = scene.call(key=f"{scene.key}-parent", gate="gate")
    job = scene.call(depends_on=parent)
    job.cancel()

    assert scene.call().id != job.id


def test_scheduled(scene: Scene):
    job = scene.queue.enqueue_in(timedelta(seconds=1), jobs.job_, scene.key, value="later")
    again = scene.call()

    assert scene.status(job) == "scheduled" and again.id == job.id
    assert scene.entry().remaining > 86400
    scene.start_worker(OURS, SCHEDULER)
    assert scene.result(job) == "later" and scene.runs == 1


def test_stopped(scene: Scene):
    scene.start_worker(OURS)
    job = scene.call(gate="gate", retry=Retry(max=3))
    scene.begun()
    send_stop_job_command(scene.connection, job.id)
    scene.wait_for_status(job, "stopped")

    assert scene.state() == "free"
    scene.next_call_runs()


def test_stopped_at_a_plain_worker(scene: Scene):
    scene.start_worker(PLAIN)
    job = scene.call("short", gate="gate")
    scene.begun()
    send_stop_job_command(scene.connection, job.id)
    scene.wait_for_status(job, "stopped")
    again = scene.call("short", value="after")

    assert again.id != job.id  # RQ has given it up, and its lease has not run out yet
    assert scene.result(again) == "after"
    assert scene.runs == 2 and not scene.overlaps


# -- accidents ---------------------------------------------------------------------------------------------------------


def test_a_killed_horse(scene: Scene):
    scene.start_worker(OURS)
    job = scene.call(then="die")
    scene.wait_for_status(job, "failed")

    assert scene.state() == "free"
    scene.next_call_runs()


def test_a_killed_horse_of_a_plain_worker(scene: Scene):
    scene.start_worker(PLAIN)
    job = scene.call("short", then="die")
    scene.wait_for_status(job, "failed")
    again = scene.call("short", value="after")

    assert scene.result(again) == "after"
    assert scene.runs == 2 and not scene.overlaps


def test_a_killed_horse_of_a_plain_worker_and_retries(scene: Scene):
    scene.start_worker(PLAIN)
    job = scene.call("short", then="die once", retry=Retry(max=2), value="second")

    assert scene.result(job) == "second"  # it waited for the end of its own lease
    first, second = scene.begun(2)
    assert (first["starts"], second["starts"]) == (1, 2)
    assert second["at"] - first["at"] > 1


def test_the_horse_of_a_killed_worker_ends_its_job(scene: Scene):
    worker = scene.start_worker(OURS)
    job = scene.call(gate="gate", value="orphan")
    scene.begun()
    worker.kill()
    assert scene.call().id == job.id
    scene.open()

    assert scene.result(job) == "orphan"
    assert scene.state() == "done" and scene.runs == 1


@pytest.mark.parametrize("kind", [HASTY, HASTY_OURS])
def test_an_abandoned_job(scene: Scene, kind: str):
    """A machine goes. RQ finds its job when some worker does its maintenance."""
    worker = scene.start_worker(kind)
    job = scene.call("short", gate="gate")
    scene.begun()
    worker.kill_all()
    scene.passes(3)
    scene.find_abandoned()
    scene.start_worker(kind)
    scene.wait_for_status(job, "failed")

    assert "AbandonedJobError" in job.latest_result().exc_string
    assert scene.state("short") == "free"
    scene.next_call_runs("short")


def test_the_job_of_a_killed_worker_and_horse_runs_again_within_its_lease_and_ten_seconds(scene: Scene):
    """Under RQ's own settings: a heartbeat is good for a minute and a half, and maintenance comes every ten minutes."""
    doomed = scene.start_worker(OURS)
    job = scene.call("short", gate="gate", retry=Retry(max=1), value="second")
    [first] = scene.begun()
    scene.start_worker(OURS)
    at = time.monotonic()
    doomed.kill_all()
    _, second = scene.begun(2)
    print(f"back after {second['at'] - at:.1f} s")
    assert second["at"] - at < jobs.short.taskguard.policy.lease + 10
    assert second["starts"] == 2 and second["token"] > first["token"]
    scene.open()
    assert scene.result(job) == "second"


def test_a_job_whose_horse_goes_on_is_not_taken_for_abandoned(scene: Scene):
    doomed = scene.start_worker(OURS)
    job = scene.call("short", gate="gate", retry=Retry(max=1), value="first")
    scene.begun()
    scene.start_worker(OURS)
    doomed.kill()
    scene.passes(8)  # some looks, and some leases
    assert scene.status(job) == "started"
    scene.open()
    assert scene.result(job) == "first"
    assert scene.runs == 1


def test_a_job_without_retries_is_left_to_the_time_that_rq_takes(scene: Scene):
    doomed = scene.start_worker(OURS)
    job = scene.call("short", gate="gate")
    scene.begun()
    scene.start_worker(OURS)
    doomed.kill_all()
    scene.passes(8)
    assert scene.status(job) == "started"  # its horse might only be stopped, and end it yet
    assert scene.state("short") == "free"


def test_an_abandoned_job_whose_horse_goes_on(scene: Scene):
    """RQ enqueues it again while its first body still runs: never beside it."""
    worker = scene.start_worker(HASTY_OURS)
    job = scene.call("short", gate="gate", retry=Retry(max=1), value="first")
    scene.begun()
    worker.kill()
    scene.passes(3)
    scene.find_abandoned()
    scene.start_worker(HASTY_OURS)
    scene.passes(4)
    assert scene.runs == 1
    scene.open()

    scene.ended()
    assert scene.result(job) == "first"
    scene.passes(2)
    assert scene.runs == 1 and scene.status(job) == "finished"


def test_stuck_in_the_intermediate_queue(scene: Scene):
    job = scene.call()
    scene.start_worker("tests.rq.workers.DiesBeforeTheBody").wait()
    assert scene.queue.intermediate_queue.get_job_ids() == [job.id] and scene.state() == "queued"
    _seen_long_ago(scene, job)
    scene.start_worker(OURS)
    scene.wait_for_status(job, "failed")

    wait_until(lambda: scene.state() == "free", what="a free key")
    scene.next_call_runs()


def test_stuck_in_the_intermediate_queue_of_a_plain_worker(scene: Scene):
    job = scene.call()
    scene.start_worker("tests.rq.workers.DiesBeforeTheBody").wait()
    _seen_long_ago(scene, job)
    scene.start_worker(PLAIN)
    scene.wait_for_status(job, "failed")

    assert scene.state() == "queued"  # no hook is called; the next call finds out
    scene.next_call_runs()


def test_a_job_found_stuck_by_the_worker_that_ran_its_id_before(scene: Scene):
    worker = GuardedWorker([scene.queue], connection=scene.connection)
    scene.call(job_id=scene.key)
    worker.work(burst=True)
    job = scene.call(job_id=scene.key)
    scene.connection.lmove(scene.queue.key, scene.queue.intermediate_queue_key)  # another worker took it, and died
    _seen_long_ago(scene, job)
    scene.queue.intermediate_queue.cleanup(worker, scene.queue)

    assert scene.status(job) == "failed" and scene.state() == "free"


def test_an_id_that_a_worker_took_along_when_it_died_is_enqueued_again(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    job = scene.call(value="found")
    scene.connection.lrem(scene.queue.key, 1, job.id)  # a worker of several queues has no intermediate queue
    assert scene.call().id == job.id and scene.queue.get_job_ids() == []
    monkeypatch.setattr("taskguard.rq.holder_job.LOST_AFTER", 0.0)

    assert scene.call().id == job.id and scene.queue.get_job_ids() == [job.id]
    scene.start_worker()
    assert scene.result(job) == "found" and scene.runs == 1


@both_workers
@pytest.mark.parametrize("then", ["return", "fail"])
def test_a_copy_of_a_job_that_joined_and_does_not_know_of_it_does_not_run(scene: Scene, kind: str, then: str):
    job = _joined(scene, then)
    scene.connection.hset(job.key, ENVELOPE_FIELD, written(scene.note(job).as_new()))
    scene.queue.push_job_id(job.id)
    scene.burst(kind)

    assert scene.runs == 1
    assert set(results(job)) == {"SUCCESSFUL" if then == "return" else "FAILED"}
    assert then == "fail" or scene.result(job) == "of the twin"


def test_a_job_that_joined_a_failure_runs_when_it_is_requeued(scene: Scene):
    job = _joined(scene, "fail")
    FailedJobRegistry(queue=scene.queue).requeue(job.id)
    scene.burst(OURS)

    assert scene.result(job) == "its own"
    assert scene.runs == 2


def _joined(scene: Scene, then: str) -> Any:
    """A job that has ended as its twin did, whose body would have returned."""
    workers = [scene.start_worker() for _ in range(2)]
    scene.call("while_running", then, gate="gate", value="of the twin")
    scene.begun()
    job = scene.call("while_running", value="its own")
    scene.wait_for_duplicate(job)
    scene.open()
    scene.wait_for_status(job, "finished" if then == "return" else "failed")
    for worker in workers:
        worker.stop()
    return job


@pytest.mark.parametrize("then", ["return", "fail"])
def test_a_leftover_copy_of_an_ended_job_is_dropped(scene: Scene, then: str):
    """Two schedulers can enqueue one scheduled job twice."""
    callbacks = {"on_success": Callback(jobs.told), "on_failure": Callback(jobs.told)}
    job = scene.call(then=then, value=1, **callbacks)
    scene.queue.push_job_id(job.id)
    worker = scene.burst(OURS)

    assert scene.queue.get_job_ids() == []
    assert scene.runs == 1 and scene.ledger.count("told") == 1 and len(results(job)) == 1
    assert "nothing to report" in worker.log()
    assert scene.status(job) == {"return": "finished", "fail": "failed"}[then]


def test_a_leftover_copy_at_a_plain_worker_is_answered_again(scene: Scene):
    job = scene.call(value=1)
    scene.queue.push_job_id(job.id)
    scene.burst(PLAIN)

    assert scene.runs == 1 and scene.result(job) == 1


@mostly_ours
def test_a_second_copy_of_a_running_job_never_runs_beside_it(scene: Scene, kind: str):
    job = scene.call("short", gate="gate", value="one")
    scene.queue.push_job_id(job.id)
    scene.start_worker(kind)
    scene.start_worker(kind)
    scene.begun()
    scene.passes(4)  # the other one was put back meanwhile
    assert scene.runs == 1
    scene.open()

    scene.ended()
    assert scene.result(job) == "one"
    scene.passes(1)
    assert scene.runs == 1
