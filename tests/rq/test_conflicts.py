"""A job that meets another one at the worker: refused, or waiting, and what it holds then."""

from __future__ import annotations

import time
from typing import Any

import pytest
from rq import SimpleWorker

from taskguard import StoreUnavailableError
from taskguard.rq.owner import owner_of
from taskguard.store import Lease
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
