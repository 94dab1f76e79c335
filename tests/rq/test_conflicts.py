"""A job that meets another one at the worker, where RQ itself has a say: its retries, its queue, its registries."""

from __future__ import annotations

from typing import Any

import pytest
from rq import Queue

from taskguard.protocol.store import Lease
from taskguard.rq import GuardedQueue
from taskguard.rq.admission import Admission
from taskguard.rq.guarding import JobGuard
from tests.rq import jobs
from tests.rq.scene import Scene


def hold(scene: Scene, name: str) -> Lease:
    """Another job runs under the key."""
    guarded = getattr(jobs, name).taskguard
    guard = guarded.guard(scene.connection)
    _, lease = guard.ask(guard.new_claim(guarded.key(scene.key), "another", guarded.policy))
    assert isinstance(lease, Lease)
    return lease


def forget(scene: Scene, lease: Lease) -> None:
    assert jobs.job_.taskguard.guard(scene.connection).store.forget(lease.key)


# -- refused ---------------------------------------------------------------------------------------------------------


def test_a_refused_job_with_retries_is_tried_again(scene: Scene):
    holder = hold(scene, "refuses")
    job = scene.call("refuses", value="at last", retry=jobs.Retry(max=1))
    scene.work(max_jobs=1)
    forget(scene, holder)
    scene.work()

    assert scene.result(job) == "at last"


def test_a_refused_job_that_is_requeued_by_hand_runs(scene: Scene):
    holder = hold(scene, "refuses")
    job = scene.call("refuses", value="at last")
    scene.work()
    forget(scene, holder)
    scene.fetch(job).requeue()
    scene.work()

    assert scene.result(job) == "at last"


# -- what cannot wait, and what cannot be read -----------------------------------------------------------------------


def test_a_call_that_runs_at_once_asks_rq_whether_the_queued_job_will_run(scene: Scene):
    queued = scene.call(value="queued")
    at_once = Queue("at-once", connection=scene.connection, is_async=False)
    assert at_once.enqueue(jobs.job_, scene.key).get_status() == "failed"
    queued.delete()

    assert at_once.enqueue(jobs.job_, scene.key).get_status() == "finished" and scene.runs == 1


def test_a_call_that_runs_at_once_refuses_the_job_of_another_store(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    """A worker puts it back; here nothing can be."""
    at_once = GuardedQueue("at-once", connection=scene.connection, is_async=False)
    with monkeypatch.context() as patch:
        patch.setattr(JobGuard, "known_store_name", "own:elsewhere")
        job = at_once.create_job(jobs.job_, (scene.key,))
        carried = Admission.ask

        def ask(admission: Any) -> Any:
            answer = carried(admission)
            patch.undo()
            return answer

        patch.setattr(Admission, "ask", ask)
        at_once.enqueue_job(job)

    assert job.get_status() == "failed" and "ConfigurationError" in scene.failure(job) and scene.runs == 0
