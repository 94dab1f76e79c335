"""A job that meets another one at the worker: refused, or waiting, and what it holds then."""

from __future__ import annotations

import time
from typing import Any

import pytest
from rq import Queue, SimpleWorker

from taskguard import OutcomeNotKeptError, StoreUnavailableError
from taskguard.protocol.store import Ending, Lease
from taskguard.rq import GuardedQueue
from taskguard.rq.admission import Admission
from taskguard.rq.guarding import JobGuard
from taskguard.rq.owner import owner_of
from taskguard.stores.redis import RedisStore
from tests.rq import jobs
from tests.rq.scene import Scene


def run_twin(scene: Scene, name: str, key: str = "", payload: str = "", owner: str = "twin", **options: Any) -> Lease:
    """Another job runs, or is queued, under that key."""
    guarded = getattr(jobs, name).taskguard
    guard = guarded.guard(scene.connection)
    claim = guard.new_claim(key or guarded.key(scene.key), owner, guarded.policy, payload=payload, **options)
    _, lease = guard.ask(claim)
    assert isinstance(lease, Lease)
    return lease


def forget(scene: Scene, lease: Lease) -> None:
    assert jobs.job_.taskguard.guard(scene.connection).store.forget(lease.key)


def explicit(name: str, key: str) -> str:
    return getattr(jobs, name).taskguard.keys.explicit(key)  # type: ignore[no-any-return]


# -- refused ---------------------------------------------------------------------------------------------------------


def test_a_refused_job_leaves_its_place_in_the_queue(scene: Scene):
    run_twin(scene, "refuses")
    job = scene.call("refuses")
    scene.work()

    assert scene.status(job) == "failed" and "DuplicateTaskError" in scene.failure(job)
    assert scene.state("refuses", part=":queue") == "free"
    assert not scene.call("refuses").taskguard.duplicate


def test_a_job_whose_idempotency_key_was_used_for_other_work_leaves_its_place_in_the_queue(scene: Scene):
    run_twin(scene, "one_and_one", explicit("one_and_one", scene.key), "other work")
    job = scene.call("one_and_one", idempotency_key=scene.key)
    scene.work()

    assert scene.status(job) == "failed" and "PayloadMismatchError" in scene.failure(job)
    assert scene.entry_of(explicit("one_and_one", scene.key) + ":queue").state == "free"


@pytest.mark.parametrize(("name", "given"), [("refuses", False), ("one_and_one", True)])
def test_a_leftover_copy_of_a_refused_job_does_not_run(scene: Scene, name: str, given: bool):
    options: dict[str, Any] = {"idempotency_key": scene.key} if given else {}
    twin = run_twin(scene, name, explicit(name, scene.key) if given else "", "other work")
    job = scene.call(name, **options)
    scene.work()
    forget(scene, twin)
    scene.queue.push_job_id(job.id)
    scene.work(SimpleWorker)  # ours looks at its status, and does not ask at all

    assert scene.runs == 0 and scene.status(job) == "failed"


def test_a_refused_job_that_is_requeued_by_hand_runs(scene: Scene):
    twin = run_twin(scene, "refuses")
    job = scene.call("refuses", value="at last")
    scene.work()
    forget(scene, twin)
    scene.fetch(job).requeue()
    scene.work()

    assert scene.result(job) == "at last"


def test_a_refused_job_with_retries_is_tried_again(scene: Scene):
    twin = run_twin(scene, "refuses")
    job = scene.call("refuses", value="at last", retry=jobs.Retry(max=1))
    scene.work(max_jobs=1)
    forget(scene, twin)
    scene.work()

    assert scene.result(job) == "at last"


# -- how long it waits -----------------------------------------------------------------------------------------------


def an_hour_later(monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 4000)


def work_once(scene: Scene) -> None:
    scene.work(max_jobs=1)


def test_an_outage_is_not_waiting_for_another_job(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    job = scene.call("patient")
    monkeypatch.setattr(jobs.patient.taskguard.guard(scene.connection), "patience", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(RedisStore, "claim", away)
        work_once(scene)
    run_twin(scene, "patient", lease=60)
    an_hour_later(monkeypatch)
    work_once(scene)

    assert scene.status(job) == "queued"


def away(*args: Any, **options: Any) -> Any:
    raise StoreUnavailableError("the store", "gone")


def test_its_own_other_run_is_not_another_job(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    job = scene.call("patient")
    own = run_twin(scene, "patient", lease=60, owner=owner_of(job.id, None))
    work_once(scene)
    forget(scene, own)
    run_twin(scene, "patient", lease=60)
    an_hour_later(monkeypatch)
    work_once(scene)

    assert scene.status(job) == "queued"


@pytest.mark.parametrize("state", ["running", "queued"])
def test_a_job_waits_for_another_one_no_longer_than_told(scene: Scene, monkeypatch: pytest.MonkeyPatch, state: str):
    run_twin(scene, "patient", lease=60, state=state)
    job = scene.call("patient")
    work_once(scene)
    assert scene.status(job) == "queued"
    an_hour_later(monkeypatch)
    work_once(scene)

    assert scene.status(job) == "failed" and "WaitTimeoutError" in scene.failure(job)


@pytest.mark.parametrize(("ttl", "held_for"), [(10 * 86400, 86400), (40, 40)])
def test_a_place_is_held_no_longer_than_queued_for_and_than_the_job_lasts(scene: Scene, ttl: int, held_for: int):
    scene.call(ttl=ttl)

    assert scene.entry().remaining == pytest.approx(held_for, abs=5)


# -- what cannot wait, and what cannot be read -----------------------------------------------------------------------


@pytest.mark.parametrize("state", ["running", "queued"])
def test_a_call_that_runs_at_once_is_refused_if_another_job_has_the_key(scene: Scene, state: str):
    """Nothing can be put back. The job that is queued does the work."""
    twin = run_twin(scene, "job_", state=state)
    at_once = Queue("at-once", connection=scene.connection, is_async=False)
    job = at_once.enqueue(jobs.job_, scene.key)

    assert job.get_status() == "failed" and "DuplicateTaskError" in scene.failure(job)
    assert scene.runs == 0 and [entry.owner for entry in scene.live()] == [twin.owner]


def test_a_call_that_runs_at_once_asks_rq_whether_the_queued_job_will_run(scene: Scene):
    queued = scene.call(value="queued")
    at_once = Queue("at-once", connection=scene.connection, is_async=False)
    assert at_once.enqueue(jobs.job_, scene.key).get_status() == "failed"
    queued.delete()

    assert at_once.enqueue(jobs.job_, scene.key).get_status() == "finished" and scene.runs == 1


def test_the_outcome_of_the_other_queue_that_cannot_be_read(scene: Scene):
    """Celery keeps it in the result serializer of its app, and RQ reads JSON and its own."""
    twin = run_twin(scene, "reused_success")
    ending = Ending(how="succeeded", keep_for=60, outcome=b"application/x-msgpack\nbinary\n\x93\x01\x02\x03")
    assert jobs.job_.taskguard.guard(scene.connection).store.complete(twin, ending)
    answered = scene.call("reused_success")
    assert answered.get_status() == "finished"
    with pytest.raises(OutcomeNotKeptError):
        answered.return_value()
    job = Queue(scene.queue.name, connection=scene.connection).enqueue(jobs.reused_success, scene.key)
    scene.work()

    assert scene.status(job) == "failed" and "OutcomeNotKeptError" in scene.failure(job) and scene.runs == 0


def test_a_call_that_runs_at_once_and_whose_token_is_refused_raises_those_to_come(scene: Scene):
    at_once = Queue("at-once", connection=scene.connection, is_async=False)
    refused = at_once.enqueue(jobs.job_, scene.key, "be refused", None, 2**52)
    assert refused.get_status() == "failed" and "StaleFenceError" in scene.failure(refused)
    again = at_once.enqueue(jobs.job_, scene.key, "be refused", None, 2**52)

    assert again.get_status() == "finished"


def test_a_call_that_runs_at_once_refuses_the_job_of_another_store(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    """A worker puts it back; here nothing can be."""
    at_once = GuardedQueue("at-once", connection=scene.connection, is_async=False)
    with monkeypatch.context() as patch:
        patch.setattr(JobGuard, "store_name", lambda *args: "own:elsewhere")
        job = at_once.create_job(jobs.job_, (scene.key,))
        carried = Admission.ask

        def ask(admission: Any) -> Any:
            answer = carried(admission)
            patch.undo()
            return answer

        patch.setattr(Admission, "ask", ask)
        at_once.enqueue_job(job)

    assert job.get_status() == "failed" and "ConfigurationError" in scene.failure(job) and scene.runs == 0
