"""What RQ knows of the job that holds a key: on its way, given up, lost, or behind a job that will not end."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from rq import Queue
from rq.job import Dependency
from rq.registry import FailedJobRegistry

from taskguard.rq import GuardedSimpleWorker, holder_job
from tests.rq import jobs
from tests.rq.scene import Scene


def test_a_caller_whose_clock_is_ahead_takes_nobodys_place(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    pipeline = scene.connection.pipeline()
    coming = scene.call(pipeline=pipeline)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 600)
    monkeypatch.setattr(holder_job, "APPEARS_WITHIN", 10.0)  # a busy machine takes its time
    with ThreadPoolExecutor() as pool:
        call = pool.submit(scene.call)
        scene.passes(0.3)
        pipeline.execute()

    assert call.result().id == coming.id and scene.queue.job_ids == [coming.id]


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
    monkeypatch.setattr(holder_job, "LOST_AFTER", 0.0)
    lost = scene.call(value="lost")
    scene.connection.lrem(scene.queue.key, 0, lost.id)
    behind = Queue(scene.queue.name, connection=scene.connection).enqueue(jobs.job_, scene.key, value="behind")
    GuardedSimpleWorker([scene.queue], connection=scene.connection).work(burst=True, max_jobs=5)

    assert scene.result(lost) == "lost" and scene.status(behind) == "finished"


def test_run_once_more_after_a_job_that_rq_has_given_up(scene: Scene):
    scene.start_worker(), scene.start_worker()
    job = scene.call("more", gate="gate", value="first")
    scene.begun()
    job.cancel()
    newest = scene.call("more", value="newest")
    scene.passes(0.5)
    scene.open()

    assert scene.result(newest) == "newest"
    assert scene.runs == 2 and not scene.overlaps


# -- dependencies ------------------------------------------------------------------------------------------------------


def test_a_twin_behind_a_job_that_failed_is_replaced_and_runs_if_its_turn_comes_after_all(scene: Scene):
    parent = scene.call(key=f"{scene.key}-parent", then="fail once")
    middle = scene.call(key=f"{scene.key}-middle", depends_on=parent)
    child = scene.call(depends_on=middle, value="child")
    assert scene.call().id == child.id
    scene.burst()
    assert scene.status(child) == "deferred" and scene.state() == "queued"
    taken = scene.call(value="instead")

    assert taken.id != child.id and not taken.taskguard.duplicate
    scene.burst()
    assert scene.result(taken) == "instead"
    FailedJobRegistry(queue=scene.queue).requeue(parent.id)
    scene.burst()
    assert scene.result(child) == "child" and scene.runs == 2


def test_a_twin_behind_a_job_that_was_deleted_is_replaced(scene: Scene):
    parent = scene.call(key=f"{scene.key}-parent")
    child = scene.call(depends_on=parent)
    parent.delete()

    assert scene.call().id != child.id


def test_a_twin_that_allows_its_parent_to_fail_keeps_its_place(scene: Scene):
    parent = scene.call(key=f"{scene.key}-parent", then="fail", gate="gate")
    child = scene.call(depends_on=Dependency(jobs=[parent], allow_failure=True), value="child")
    scene.start_worker()
    scene.begun(key=f"{scene.key}-parent")
    assert scene.call().id == child.id
    scene.open()

    assert scene.result(child) == "child" and scene.runs == 1


class CutOff(redis.Redis):
    """The queue's own Redis, over a line that is cut when one job is looked up."""

    cut_at = ""

    def hgetall(self, name: Any) -> Any:
        if self.cut_at == name:
            raise redis.ConnectionError("cut")
        return super().hgetall(name)


def test_when_rq_is_asked_about_the_twin_in_the_queue(scene: Scene):
    twin = scene.call()
    job = Queue(scene.queue.name, connection=scene.connection).enqueue(jobs.job_, scene.key, at_front=True)
    with CutOff.from_url(scene.url) as connection:
        connection.cut_at = twin.key
        GuardedSimpleWorker([scene.queue.name], connection=connection).work(burst=True, max_jobs=1)

    assert scene.status(job) == "queued" and scene.queue.job_ids == [twin.id, job.id] and scene.runs == 0
