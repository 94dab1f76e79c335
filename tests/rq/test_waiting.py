"""A job that waits in its work horse: the time that it has, and what may change meanwhile."""

from __future__ import annotations

from rq import Retry

from tests.rq.scene import Scene, mostly_ours
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
