"""A job that waits in its work horse: the time that it has, and what may change meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from rq import Retry

from tests.rq.scene import Scene, both_workers, mostly_ours
from tests.servers import RedisServer
from tests.waiting import wait_until

TIMED = "tests.rq.workers.TimerWorker"


def _starts_to_wait(scene: Scene, name: str = "waits", **options: object) -> object:
    """A job in the hands of a worker, that waits for another one."""
    scene.call(name, gate="gate", value="first")
    scene.begun()
    job = scene.call(name, **options)
    scene.wait_for_status(job, "started")
    return job


@mostly_ours
def test_the_time_that_it_waits_is_not_taken_from_its_own(scene: Scene, kind: str):
    scene.start_worker(kind), scene.start_worker(kind)
    job = _starts_to_wait(scene, then="sleep two seconds", value="whole", job_timeout=4)
    scene.passes(3)
    scene.open()

    assert scene.result(job) == "whole" and scene.runs == 2


def test_a_body_that_waited_is_still_ended_when_its_time_is_over(scene: Scene):
    scene.start_worker(), scene.start_worker()
    job = _starts_to_wait(scene, then="sleep", job_timeout=2)
    scene.passes(1.5)
    scene.open()
    scene.wait_for_status(job, "failed")

    _, waited = scene.begun(2)
    [failed] = scene.ledger.lines("failed", key=scene.key)
    assert failed["error"] == "JobTimeoutException" and failed["at"] - waited["at"] > 1  # half a second were left


def test_where_its_time_cannot_be_stopped_it_comes_again_with_all_of_it(scene: Scene):
    scene.start_worker(TIMED), scene.start_worker(TIMED)
    job = _starts_to_wait(scene, then="sleep two seconds", value="whole", job_timeout=4)
    scene.passes(2)
    scene.open()

    assert scene.result(job) == "whole" and scene.runs == 2


@mostly_ours
def test_what_others_write_to_it_meanwhile_stays(scene: Scene, kind: str):
    scene.start_worker(kind), scene.start_worker(kind)
    job = _starts_to_wait(scene, value="second", retry=Retry(max=3))
    other = scene.fetch(job)
    other.meta["progress"] = "theirs"
    other.save_meta()
    before = scene.fetch(job)
    wait_until(lambda: scene.fetch(job).started_at > before.started_at, what="a second delivery of it")
    scene.open()

    assert scene.result(job) == "second"
    found = scene.fetch(job)
    assert found.meta == {"progress": "theirs"} and found.retries_left == 3 and not found.number_of_retries
    assert [result.type.name for result in found.results()] == ["SUCCESSFUL"]


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


@mostly_ours
@pytest.mark.parametrize("wipe", [False, True])
def test_redis_is_restarted_while_a_job_waits_in_its_horse(
    make_scene: Any, own_redis: RedisServer, kind: str, wipe: bool
):
    scene = make_scene(own_redis.url)
    scene.start_worker(kind), scene.start_worker(kind)
    first = scene.call("waits", gate="gate", value=1)
    scene.begun()
    second = scene.call("waits", value=2)
    scene.wait_for_status(second, "started")
    own_redis.restart(wipe=wipe)
    scene.passes(1)
    scene.open()
    if wipe:
        # RQ has no job any more, and none is enqueued again. (One that was asking at that moment has its key.)
        wait_until(lambda: scene.status(second) in (None, "finished") and scene.queue.count == 0)
        scene.next_call_runs("waits")
        return

    assert (scene.result(first, within=40), scene.result(second, within=40)) == (1, 2)
    assert scene.runs == 2 and not scene.overlaps
