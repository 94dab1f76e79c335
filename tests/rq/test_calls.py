"""What a call is answered with, and what its options make of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from rq import Queue, Retry
from rq.exceptions import DuplicateJobError
from rq.group import Group
from rq.job import Callback, Job

from taskguard import ConfigurationError, PayloadMismatchError
from taskguard.rq import GuardedQueue
from tests.rq import jobs
from tests.rq.scene import OURS, PLAIN, Scene
from tests.waiting import wait_until

# -- duplicates --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["key", "args", "kwargs", "path"])
def test_every_spelling_of_one_call_is_one_key(scene: Scene, name: str):
    first = scene.queue.enqueue(jobs.job_, scene.key)
    again = {
        "key": lambda: scene.queue.enqueue(jobs.job_, key=scene.key),
        "args": lambda: scene.queue.enqueue(jobs.job_, args=(scene.key,), kwargs={"then": "return"}),
        "kwargs": lambda: scene.queue.enqueue_call(jobs.job_, kwargs={"key": scene.key, "gate": None}),
        "path": lambda: scene.queue.enqueue("tests.rq.jobs.job_", scene.key),
    }[name]()

    assert again.id == first.id


@pytest.mark.parametrize("kind", [OURS, PLAIN])
def test_jobs_of_a_plain_queue_are_guarded_when_they_run(scene: Scene, kind: str):
    queue = Queue(scene.queue.name, connection=scene.connection)
    one = queue.enqueue(jobs.while_running, scene.key, gate="gate", value=1)
    two = queue.enqueue(jobs.while_running, scene.key, gate="gate", value=2)
    scene.start_worker(kind)
    scene.start_worker(kind)
    scene.begun()
    scene.wait_for_duplicate(one, two)
    assert scene.runs == 1
    scene.open()

    assert scene.result(one) == scene.result(two)  # the second one joined the first
    assert scene.runs == 1


def test_a_job_id_that_no_store_can_keep_is_refused_at_the_call(scene: Scene):
    with pytest.raises(ConfigurationError, match="job_id.*5000 bytes"):
        scene.call(job_id="x" * 5000)
    with pytest.raises(ConfigurationError, match="job_id.*5000 bytes"):
        scene.queue.enqueue_many([Queue.prepare_data(jobs.job_, (scene.key,), job_id="x" * 5000)])
    assert scene.queue.count == 0 and scene.state() is None


@pytest.mark.parametrize("kind", [OURS, PLAIN])
def test_a_job_of_a_plain_queue_whose_id_no_store_can_keep_fails_as_itself(scene: Scene, kind: str):
    queue = Queue(scene.queue.name, connection=scene.connection)
    job = queue.enqueue(jobs.job_, scene.key, job_id="x" * 600)
    scene.start_worker(kind)
    wait_until(lambda: job.get_status() == "failed")

    assert "the job's id" in str(job.latest_result().exc_string)
    assert queue.failed_job_registry.get_job_ids() == [job.id]
    assert scene.runs == 0


def test_threads_that_call_at_once_make_one_job(scene: Scene):
    def call(n: int) -> str:
        with closing(redis.Redis.from_url(scene.url)) as connection:
            return GuardedQueue(scene.queue.name, connection=connection).enqueue(jobs.job_, scene.key, value=n).id

    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(call, range(40)))

    assert len(ids) == 1 and scene.queue.count == 1


def test_a_caller_that_died_between_its_claim_and_its_job(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    class Gone(BaseException):
        pass

    def die(*args: Any, **options: Any) -> None:
        raise Gone

    with monkeypatch.context() as patch:
        patch.setattr(Queue, "enqueue_job", die)
        patch.setattr("taskguard.rq.admission.Admission.refused", lambda self: None)
        with pytest.raises(Gone):
            scene.call()
    assert scene.state() == "queued" and scene.queue.count == 0

    job = scene.call(value="instead")
    assert not job.taskguard.duplicate and scene.queue.job_ids == [job.id]


def test_a_job_that_rq_refuses_frees_the_key(scene: Scene):
    other = scene.queue.enqueue(jobs.plain, job_id="taken")
    with pytest.raises(DuplicateJobError):
        scene.call(job_id="taken", unique=True)

    assert scene.state() == "free"
    other.delete()


@pytest.mark.parametrize("name", ["plain", "job_"])
def test_a_unique_job_without_an_id_is_refused_as_by_rq(scene: Scene, name: str):
    """Whoever reads the id of a job that has none makes one up."""
    function, at = getattr(jobs, name), datetime.now(timezone.utc) + timedelta(minutes=1)
    with pytest.raises(ValueError, match="explicit job_id"):
        scene.queue.enqueue_job(scene.queue.create_job(function, (scene.key,)), unique=True)
    with pytest.raises(ValueError, match="explicit job_id"):
        scene.queue.schedule_job(scene.queue.create_job(function, (scene.key,)), at, unique=True)

    assert scene.queue.count == 0 and scene.state() is None


def test_a_unique_job_with_dependencies_is_refused_as_by_rq_also_if_it_is_a_duplicate(scene: Scene):
    scene.call()
    first = scene.queue.enqueue(jobs.plain)
    with pytest.raises(ValueError, match="dependencies"):
        scene.call(job_id=scene.key, unique=True, depends_on=first)


def test_the_same_id_can_be_used_again(scene: Scene):
    scene.start_worker()
    name = f"nightly-{scene.key}"
    first = scene.call(job_id=name, value=1)
    assert scene.result(first) == 1
    second = scene.call(job_id=name, value=2)
    scene.begun(2)

    assert second.id == first.id
    wait_until(lambda: scene.fetch(second).return_value() == 2, what="the second result")


def test_the_same_id_is_not_rewritten_while_it_runs(scene: Scene):
    scene.start_worker()
    first = scene.call(job_id="fixed-id", value=1, gate="gate")
    scene.begun()
    again = scene.call(job_id="fixed-id", value=2)

    assert again.taskguard.duplicate and scene.status(first) == "started"
    assert scene.fetch(first).kwargs["value"] == 1


def test_meta_that_is_passed_on_is_not_taken_for_the_jobs_own(scene: Scene):
    first = scene.call()
    other = scene.call(key=f"{scene.key}-other", meta=first.meta)

    assert other.id != first.id and scene.note(other).key != scene.note(first).key
    assert other.taskguard.key != first.taskguard.key


def test_the_callers_meta_is_kept_and_not_changed(scene: Scene):
    mine = {"mine": 1}
    job = scene.call(meta=mine)

    assert mine == {"mine": 1} and scene.fetch(job).meta["mine"] == 1


# -- ways to enqueue ---------------------------------------------------------------------------------------------------


def test_enqueue_at(scene: Scene):
    moment = datetime.now(timezone.utc) + timedelta(hours=1)
    first = scene.queue.enqueue_at(moment, jobs.job_, scene.key)
    second = scene.queue.enqueue_at(moment, jobs.job_, scene.key)

    assert second.id == first.id and second.taskguard.duplicate
    assert len(scene.queue.scheduled_job_registry) == 1
    assert 86400 + 3500 < scene.entry().remaining < 86400 + 3700


def test_enqueue_many(scene: Scene):
    datas = [
        Queue.prepare_data(jobs.job_, (scene.key,), {"value": 1}),
        Queue.prepare_data(jobs.plain, ("plain",)),
        Queue.prepare_data(jobs.job_, (scene.key,), {"value": 2}),
        Queue.prepare_data(jobs.job_, (f"{scene.key}-other",)),
    ]
    one, plain, two, other = scene.queue.enqueue_many(datas)

    assert one.id == two.id and two.taskguard.duplicate and not one.taskguard.duplicate
    assert scene.queue.job_ids == [one.id, plain.id, other.id]
    assert scene.fetch(plain).func_name == "tests.rq.jobs.plain"
    assert scene.queue.enqueue_many(datas[:1])[0].id == one.id


def test_enqueue_many_with_dependencies(scene: Scene):
    parent = scene.call(key=f"{scene.key}-parent")
    datas = [
        Queue.prepare_data(jobs.job_, (scene.key,), depends_on=[parent]),
        Queue.prepare_data(jobs.job_, (scene.key,)),
    ]
    first, second = scene.queue.enqueue_many(datas)

    assert first.id == second.id and scene.status(first) == "deferred"
    scene.start_worker()
    scene.wait_for_status(first, "finished")
    assert scene.runs == 1


def test_a_group_has_the_twin_in_it(scene: Scene):
    twin = scene.call(value="of the twin")
    group = Group.create(connection=scene.connection)
    datas = [
        Queue.prepare_data(jobs.job_, (scene.key,)),
        Queue.prepare_data(jobs.job_, (f"{scene.key}-a",)),
        Queue.prepare_data(jobs.job_, (f"{scene.key}-a",)),
    ]
    group.enqueue_many(scene.queue, datas)

    assert len(group.get_jobs()) == 2 and twin.id in {job.id for job in group.get_jobs()}
    scene.burst()
    assert all(job.get_status() == "finished" for job in group.get_jobs())


def test_a_queue_that_runs_at_once(scene: Scene):
    queue = GuardedQueue("now", connection=scene.connection, is_async=False)
    job = queue.enqueue(jobs.job_, scene.key, value="now")

    assert job.return_value() == "now" and scene.state() == "done"
    failed = queue.enqueue(jobs.job_, scene.key, "fail")
    assert failed.get_status() == "failed" and scene.state() == "free"


def test_a_queue_that_runs_at_once_tells_a_conflict_at_once(scene: Scene):
    scene.start_worker()
    scene.call("while_running", gate="gate")
    scene.begun()
    job = GuardedQueue("now", connection=scene.connection, is_async=False).enqueue(jobs.while_running, scene.key)

    assert "DuplicateTaskError" in job.latest_result().exc_string and scene.runs == 1


def test_a_json_queue(scene: Scene):
    queue = GuardedQueue(scene.queue.name, connection=scene.connection, serializer="rq.serializers.JSONSerializer")
    job = queue.enqueue(jobs.job_, scene.key, value={"a": [1]})
    assert queue.enqueue(jobs.job_, scene.key).id == job.id
    scene.burst(OURS, "--serializer", "rq.serializers.JSONSerializer")

    found = Job.fetch(job.id, scene.connection, serializer=queue.serializer)
    assert found.return_value() == {"a": [1]} and scene.runs == 1


def test_a_guarded_function_called_directly_is_a_call(scene: Scene):
    scene.start_worker()
    job = scene.call(then="call itself", value=7)

    assert scene.result(job) == ["inner", 7]
    inner = scene.ledger.lines("begin", key=f"{scene.key}-inner")[0]
    assert inner["token"] == scene.begun()[0]["token"]  # the fence of the job around it


def test_a_coroutine_runs(scene: Scene):
    scene.start_worker()
    job = scene.call("awaited", then=9)

    assert scene.result(job) == 9
    assert scene.state("awaited") == "done"


# -- on_conflict -------------------------------------------------------------------------------------------------------


def test_a_job_that_waits_gives_other_jobs_their_turn(scene: Scene):
    scene.start_worker()
    scene.call("waits", gate="gate")
    scene.begun()
    worker = scene.start_worker()
    scene.call("waits")
    worker.wait_for_log("jobs.waits")
    other = scene.call(key="other", value="had its turn")

    assert scene.result(other) == "had its turn"
    assert scene.runs == 1


def test_run_once_more_takes_arguments_that_no_key_could_be_made_of(scene: Scene):
    first = scene.call("more", value=jobs.Opaque(1))
    newer = scene.call("more", value=jobs.Opaque(2))
    scene.burst()

    assert newer.id != first.id and scene.runs == 2


def test_what_tells_two_calls_apart_is_the_same_for_the_caller_and_the_worker(scene: Scene):
    claimed = scene.call("more", value=1)
    left = Queue(scene.queue.name, connection=scene.connection).enqueue(jobs.more, scene.key, value=1)
    at_worker = jobs.more.taskguard.identified(scene.note(left), (scene.key,), {"value": 1})

    assert at_worker.payload == scene.note(claimed).payload


def test_a_joined_job_takes_the_place_of_a_twin_whose_worker_was_killed(scene: Scene):
    worker = scene.start_worker()
    one = scene.call("while_running", gate="gate")
    scene.begun()
    scene.start_worker()
    two = scene.call("while_running", value="second")
    scene.wait_for_duplicate(two)
    worker.kill_all()

    assert scene.result(two) == "second" and scene.status(one) == "started"
    assert not scene.overlaps


# -- hold --------------------------------------------------------------------------------------------------------------


# -- on_done, idempotency_key, enforce ---------------------------------------------------------------------------------


def test_finished_work_is_reused(scene: Scene):
    scene.start_worker()
    first = scene.call("reused_success", value="kept")
    assert scene.result(first) == "kept"
    again = scene.call("reused_success", value="other")

    assert again.id == first.id and again.taskguard.state == "done" and again.return_value() == "kept"
    first.delete()
    stored = scene.call("reused_success")
    assert stored.id == first.id and stored.return_value() == "kept" and stored.is_finished
    assert scene.runs == 1


def test_a_success_that_rq_could_not_tell_is_a_success(scene: Scene):
    job = scene.call("reused_success", value="kept", on_success=Callback("tests.rq.jobs.missing"))
    scene.burst()
    assert scene.status(job) == "failed"
    again = scene.call("reused_success")

    assert again.taskguard.duplicate and again.get_status() == "finished" and again.return_value() == "kept"


def test_a_failure_that_rq_no_longer_has_is_remembered(scene: Scene):
    scene.start_worker()
    first = scene.call("reused", then="fail")
    scene.wait_for_status(first, "failed")
    first.delete()
    stored = scene.call("reused")

    assert stored.is_failed and "TroubleError" in str(stored.exc_info) and stored.return_value() is None


def test_an_outcome_that_json_would_change_is_kept_by_the_queues_own_serializer(scene: Scene):
    scene.start_worker()
    first = scene.call("reused_success", then="return a tuple")
    value = scene.result(first)
    first.delete()

    assert isinstance(value, tuple) and scene.call("reused_success").return_value() == value


def test_a_large_outcome_is_taken_from_rq(scene: Scene):
    scene.start_worker()
    first = scene.call("reused_success", then="return much")
    scene.wait_for_status(first, "finished")
    second = Queue(scene.queue.name, connection=scene.connection).enqueue(jobs.reused_success, scene.key)

    assert len(scene.result(second)) == 100_000 and scene.runs == 1


def test_an_idempotency_key_takes_arguments_that_no_key_could_be_made_of(scene: Scene):
    """Those are compared by their types; what can be compared exactly still is."""
    options = {"idempotency_key": f"order-{scene.key}"}
    first = scene.call(value=jobs.Opaque(1), **options)

    assert scene.call(value=jobs.Opaque(1), **options).id == first.id
    with pytest.raises(PayloadMismatchError):
        scene.call(then="fail", value=jobs.Opaque(1), **options)
    with pytest.raises(PayloadMismatchError):
        scene.call(value=1, **options)
    scene.burst()
    assert scene.status(first) == "finished"


@pytest.mark.faults  # the guard asks for ten seconds each time; in short it is in test_store_away.py
def test_the_store_cannot_be_asked(scene: Scene):
    scene.start_worker()
    job = scene.call("unguarded_store", value=1)
    assert not job.taskguard.duplicate and scene.result(job, within=30) == 1
    failed = scene.call("lost_store", value=1)
    scene.wait_for_status(failed, "failed", within=30)

    assert "StoreUnavailableError" in failed.latest_result().exc_string


def test_arguments_that_do_not_fit_are_for_the_body_to_refuse(scene: Scene):
    scene.start_worker()
    job = scene.queue.enqueue(jobs.job_, scene.key, nonsense=1)
    scene.wait_for_status(job, "failed")

    assert "TypeError" in job.latest_result().exc_string


def test_retries_of_a_joined_job_are_its_own(scene: Scene):
    scene.start_worker()
    scene.start_worker()
    one = scene.call("while_running", then="fail", gate="gate")
    scene.begun()
    two = scene.call("while_running", retry=Retry(max=1), value="by itself")
    scene.wait_for_duplicate(two)
    scene.open()
    scene.wait_for_status(one, "failed")

    assert scene.result(two) == "by itself" and scene.runs == 2


def test_a_scheduled_job_can_be_enqueued_at_once(scene: Scene):
    job = scene.queue.enqueue_in(timedelta(hours=1), jobs.job_, scene.key, value="now")
    scene.queue.enqueue_job(scene.fetch(job))
    scene.start_worker()

    assert scene.result(job) == "now" and scene.runs == 1
