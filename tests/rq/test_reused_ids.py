"""An id that is used again: each call with it is another job, and each of its occurrences is."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from rq import Queue, Repeat, Retry

from taskguard.rq import GuardedQueue
from tests.rq import jobs
from tests.rq.scene import Scene
from tests.waiting import wait_until


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


def test_twins_in_one_call_of_many_that_have_one_name(scene: Scene):
    datas = [Queue.prepare_data(jobs.job_, (scene.key,), {"value": n}, job_id=scene.key) for n in range(3)]
    answers = scene.queue.enqueue_many(datas)

    assert {job.id for job in answers} == {scene.key} and scene.queue.count == 1
    scene.burst()
    assert scene.result(answers[0]) == 0 and scene.runs == 1


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
