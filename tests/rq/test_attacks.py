"""Deaths between each two steps, restarts in the middle of a wait, and calls that nobody should make."""

from __future__ import annotations

from typing import Any

import pytest
from rq import Queue, Repeat, Retry

from tests.rq import jobs
from tests.rq.scene import Scene, mostly_ours
from tests.servers import RedisServer
from tests.waiting import wait_until

DOOMED = "tests.rq.workers.DoomedWorker"


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


def test_twins_in_one_call_of_many_that_have_one_name(scene: Scene):
    datas = [Queue.prepare_data(jobs.job_, (scene.key,), {"value": n}, job_id=scene.key) for n in range(3)]
    answers = scene.queue.enqueue_many(datas)

    assert {job.id for job in answers} == {scene.key} and scene.queue.count == 1
    scene.burst()
    assert scene.result(answers[0]) == 0 and scene.runs == 1


def test_a_repetition_meets_a_twin(scene: Scene):
    scene.start_worker(), scene.start_worker()
    repeated = scene.call("while_running", repeat=Repeat(times=2), value="repeated")
    twin = scene.call("while_running", value="twin")
    assert scene.result(twin) in ("twin", "repeated")
    wait_until(lambda: len(repeated.results()) == 3, what="three ends")

    assert not scene.overlaps and scene.state("while_running") == "done"


def test_an_id_that_is_used_for_another_key_while_it_runs(scene: Scene):
    """RQ writes over the record of the running one. Each body runs once, and no key stays blocked."""
    scene.start_worker(), scene.start_worker()
    scene.call(gate="gate", job_id="of-two", value=1)
    scene.begun()
    other = f"{scene.key}-other"
    scene.call(key=other, job_id="of-two", value=2)
    scene.begun(key=other)
    scene.open()
    wait_until(lambda: scene.state() == "done" and scene.state(key=other) == "done")

    assert scene.runs == 1 and scene.ledger.count("begin", key=other) == 1


def test_a_large_result_of_a_horse_that_dies_before_rq_has_it_is_told_as_what_it_is(scene: Scene):
    job = scene.call(then="return much", retry=Retry(max=1))
    _doomed(scene, "after complete")
    scene.wait_for_status(job, "failed", "finished")

    assert scene.runs == 1  # it is not run again; that its result is gone is told
    assert "OutcomeNotKeptError" in job.latest_result().exc_string
