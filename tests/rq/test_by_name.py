"""Functions that are guarded by their names; and workers that look at another store than the callers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest
from rq import Retry

from taskguard import ConfigurationError
from taskguard.rq import GuardedQueue, GuardedSimpleWorker, delivery
from taskguard.rq.guarding import JobGuard, guard_for
from tests.rq import jobs, named
from tests.rq.scene import OURS, Scene
from tests.servers import require
from tests.waiting import wait_until

SIMPLE = "taskguard.rq.GuardedSimpleWorker"
SPAWN = "taskguard.rq.GuardedSpawnWorker"
BY_NAME = ("--queue-class", "tests.rq.named.ByName")


@pytest.fixture
def queue(scene: Scene) -> GuardedQueue:
    scene.queue = named.ByName(scene.queue.name, connection=scene.connection)
    return scene.queue


@pytest.mark.parametrize("kind", [OURS, SIMPLE, SPAWN])
def test_a_function_is_guarded_by_its_name(scene: Scene, queue: Any, kind: str):
    job = queue.enqueue(named.charge, scene.key, gate="gate", value=1, fence="the caller's own", retry=Retry(max=1))
    assert queue.enqueue("tests.rq.named.charge", scene.key).id == job.id
    scene.start_worker(kind, *BY_NAME)
    scene.begun()
    again = queue.enqueue(named.charge, scene.key)

    assert again.id == job.id and again.taskguard.state == "running"
    scene.open()
    assert scene.result(job) == 1
    [begin] = scene.begun()
    assert begin["token"] > 0 and begin["given"] == "the caller's own"


def test_a_job_that_no_queue_of_ours_enqueued_is_guarded_when_it_runs(scene: Scene, queue: Any):
    from rq import Queue

    plain = Queue(queue.name, connection=scene.connection)
    one = plain.enqueue(named.charge, scene.key, gate="gate", value=1)
    two = plain.enqueue(named.charge, scene.key, gate="gate", value=2)
    scene.start_worker(OURS, *BY_NAME), scene.start_worker(OURS, *BY_NAME)
    scene.begun()
    scene.wait_for_duplicate(one, two)
    scene.open()

    assert scene.result(one) == scene.result(two) and scene.runs == 1


def test_a_killed_horse_of_a_function_that_is_guarded_by_its_name(scene: Scene, queue: Any):
    import os
    import signal

    worker = scene.start_worker(OURS, *BY_NAME)
    job = queue.enqueue(named.charge, scene.key, gate="gate", value="second", retry=Retry(max=1))
    scene.begun()
    os.kill(worker.horse(), signal.SIGKILL)
    scene.open()

    assert scene.result(job) == "second" and scene.runs == 2 and not scene.overlaps


def test_a_method_is_guarded_by_its_name(scene: Scene, queue: Any):
    job = queue.enqueue(named.Shop().charge, scene.key, value=1)
    assert queue.enqueue(named.Shop().charge, scene.key).taskguard.duplicate
    scene.burst(OURS, *BY_NAME)

    assert scene.result(job) == 1 and scene.begun()[0]["token"] > 0


def test_the_first_pattern_that_fits_counts_and_a_decorator_more_than_any():
    charge, other = (guard_for(function, named.ByName) for function in (named.charge, named.other))

    assert isinstance(charge, JobGuard) and charge.policy.lease == 3
    assert isinstance(other, JobGuard) and not other.policy.enforce
    assert guard_for(jobs.job_, named.ByName) is jobs.job_.taskguard
    assert guard_for(jobs.plain, named.ByName) is None and guard_for(named.charge, GuardedQueue) is None


def test_options_that_cannot_work_are_an_error_when_the_function_is_called(scene: Scene):
    class Wrong(GuardedQueue):
        taskguard_tasks: Mapping[str, Any] = {"tests.rq.named.*": {"leese": 3}}

    with pytest.raises(ConfigurationError, match="did you mean lease"):
        Wrong("wrong", connection=scene.connection).enqueue(named.other, "key")


# -- another store -----------------------------------------------------------------------------------------------------


def test_a_worker_that_looks_at_another_namespace_refuses_and_says_so(
    scene: Scene, queue: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(delivery, "OTHER_STORE", 0.0)
    elsewhere = named.Elsewhere(queue.name, connection=scene.connection)
    job = elsewhere.enqueue(named.charge, scene.key, value=1)
    work = GuardedSimpleWorker([queue], connection=scene.connection, queue_class=named.ByName)
    work.work(burst=True, max_jobs=1)

    assert scene.status(job) == "queued" and scene.runs == 0
    assert "uses another store" in caplog.text and "namespace" in caplog.text
    work = GuardedSimpleWorker([elsewhere], connection=scene.connection, queue_class=named.Elsewhere)
    work.work(burst=True, max_jobs=1)
    assert scene.result(job) == 1


def test_a_worker_that_looks_at_another_server_refuses(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """One has the store of the queue, the other one a store of its own."""
    monkeypatch.setattr(delivery, "OTHER_STORE", 0.0)
    with closing(require("redis-8")) as server:

        class Aside(GuardedQueue):
            taskguard_tasks: Mapping[str, Any] = {"tests.rq.named.*": {"key": "key", "store": server.url}}

        class Same(GuardedQueue):
            taskguard_tasks: Mapping[str, Any] = {"tests.rq.named.*": {"key": "key", "store": scene.url}}

        def work(kind: Any) -> None:
            queue = kind(scene.queue.name, connection=scene.connection)
            GuardedSimpleWorker([queue], connection=scene.connection, queue_class=kind).work(burst=True, max_jobs=1)

        own = named.ByName(scene.queue.name, connection=scene.connection)
        job = own.enqueue(named.charge, scene.key, value=1)
        work(Aside)
        assert scene.status(job) == "queued" and "uses another store" in caplog.text
        work(Same)  # the same server, by its address
        assert scene.result(job) == 1
        aside = Aside(scene.queue.name, connection=scene.connection)
        job = aside.enqueue(named.charge, scene.key, value=2)
        work(Aside)
        wait_until(lambda: scene.status(job) == "finished")
        assert scene.runs == 2
