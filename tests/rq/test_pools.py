"""Functions that are guarded by their names, at workers that were not told of these names, as those of a pool."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any

import pytest
from rq import Queue, Retry

from taskguard.rq import GuardedQueue, GuardedSimpleWorker
from taskguard.rq.guarding import guard_for
from tests.rq import named
from tests.rq.scene import OURS, Scene

SPAWN = "taskguard.rq.GuardedSpawnWorker"
OWN = "tests.rq.named.OwnWorker"
TWO = ("--num-workers", "2")


@pytest.fixture
def queue(scene: Scene) -> GuardedQueue:
    scene.queue = named.ByName(scene.queue.name, connection=scene.connection)
    return scene.queue


def _entry(scene: Scene, queue: GuardedQueue) -> Any:
    guarded = guard_for(named.charge, queue)
    assert guarded is not None
    return guarded.guard(scene.connection, queue.serializer).store.get(guarded.key(scene.key))


def _see_it_guarded(scene: Scene, queue: GuardedQueue) -> None:
    job = queue.enqueue(named.charge, scene.key, gate="gate", value=1)
    scene.begun()
    again = queue.enqueue(named.charge, scene.key)

    assert again.id == job.id and again.taskguard.state == "running"
    scene.open()
    assert scene.result(job) == 1 and scene.begun()[0]["token"] > 0 and scene.runs == 1
    assert _entry(scene, queue).state == "done"


@pytest.mark.parametrize("kind", [OURS, SPAWN])
def test_a_job_that_is_guarded_by_its_name_is_guarded_in_rqs_pool(scene: Scene, queue: Any, kind: str):
    scene.start_worker(kind, *TWO, "--queue-class", "tests.rq.named.ByName", command="worker-pool")

    _see_it_guarded(scene, queue)


def test_a_job_that_is_guarded_by_its_name_is_guarded_in_a_pool_of_ones_own(scene: Scene, queue: Any):
    scene.start_cron([], "tests.rq.own_pool", scene.url, queue.name)

    _see_it_guarded(scene, queue)


def test_a_killed_horse_of_a_pool_is_settled_at_once(scene: Scene, queue: Any):
    pool = scene.start_worker(OURS, *TWO, command="worker-pool")
    job = queue.enqueue(named.charge, scene.key, gate="gate", value="second", retry=Retry(max=1))
    [begin] = scene.begun()
    assert begin["pid"] != pool.pid
    os.kill(begin["pid"], signal.SIGKILL)
    scene.open()

    assert scene.result(job) == "second" and scene.runs == 2 and not scene.overlaps
    assert 0 < begin["token"] < scene.begun(2)[1]["token"]


@pytest.mark.parametrize("command", ["worker", "worker-pool"])
def test_a_worker_class_that_names_its_queue_class_guards_jobs_of_plain_queues_too(
    scene: Scene, queue: Any, command: str
):
    plain = Queue(queue.name, connection=scene.connection)
    jobs = [plain.enqueue(named.charge, scene.key, gate="gate", value=n) for n in (1, 2)]
    for _ in range(2 if command == "worker" else 1):
        scene.start_worker(OWN, *(TWO if command == "worker-pool" else ()), command=command)
    scene.begun()
    scene.wait_for_duplicate(*jobs)
    scene.open()

    assert scene.result(jobs[0]) == scene.result(jobs[1]) and scene.runs == 1


def test_a_claimed_job_that_nothing_guards_any_more_says_so_and_frees_its_key(
    scene: Scene, caplog: pytest.LogCaptureFixture
):
    class Gone(GuardedQueue):
        """No worker can import it."""

        taskguard_tasks: Mapping[str, Any] = {"tests.rq.named.*": {"key": "key"}}

    queue = Gone(scene.queue.name, connection=scene.connection)
    job = queue.enqueue(named.charge, scene.key, value=1)
    assert _entry(scene, queue).state == "queued"
    scene.work(GuardedSimpleWorker)

    assert scene.result(job) == 1 and scene.begun()[0]["token"] == 0
    assert "runs unguarded" in caplog.text and "Gone" in caplog.text
    assert _entry(scene, queue).state == "free"
