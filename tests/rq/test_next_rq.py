"""Our workers on what RQ's next major release will be: see `next_rq.py`."""

from __future__ import annotations

import inspect
import sys

import pytest
from rq import Retry
from rq.job import Callback
from rq.worker import BaseWorker

from tests.bodies import DIRECTORY
from tests.rq import jobs
from tests.rq.bodies import TELLS
from tests.rq.scene import OURS, ROOT, Scene, WorkerProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(
    "execution" in inspect.signature(BaseWorker.perform_job).parameters, reason="the installed RQ is that one"
)

SIMPLE = "taskguard.rq.GuardedSimpleWorker"
both = pytest.mark.parametrize("kind", [OURS, SIMPLE])
_COMMAND = "import tests.rq.next_rq, rq.cli; rq.cli.main()"


def start_worker(scene: Scene, kind: str, *options: str) -> WorkerProcess:
    line = [sys.executable, "-c", _COMMAND, "worker", "-u", scene.url, "--worker-class", kind, *options]
    environment = {DIRECTORY: str(scene.directory), "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT), TELLS: "1"}
    worker = WorkerProcess([*line, scene.queue.name], scene.directory / f"worker{len(scene.workers)}.log", environment)
    scene.workers.append(worker)
    return worker


@both
def test_it_runs_guarded_jobs(scene: Scene, kind: str):
    start_worker(scene, kind)
    job = scene.call(gate="gate", value="one")
    scene.begun()
    assert scene.state() == "running" and scene.call().id == job.id
    scene.open()
    assert scene.result(job) == "one"
    failed = scene.call(then="fail once", retry=Retry(max=1), value="two")

    assert scene.result(failed) == "two" and scene.state() == "done"
    assert scene.runs == 3


@both
def test_it_drops_a_leftover_copy(scene: Scene, kind: str):
    job = scene.call(value=1, on_success=Callback(jobs.told))
    scene.queue.push_job_id(job.id)
    start_worker(scene, kind, "--burst").wait(60)

    assert scene.runs == 1 and scene.ledger.count("told") == 1 and scene.status(job) == "finished"
    assert not job.get_executions() and not scene.queue.started_job_registry.get_job_ids()


def test_it_settles_for_a_horse_that_was_killed(scene: Scene):
    start_worker(scene, OURS)
    job = scene.call(then="die once", retry=Retry(max=2), value="second")

    assert scene.result(job) == "second"
    assert [line["starts"] for line in scene.begun(2)] == [1, 2]
    assert not scene.fetch(job).get_executions()


def test_it_defers_a_job_that_has_to_wait(scene: Scene):
    workers = [start_worker(scene, SIMPLE) for _ in range(2)]
    called = [scene.call("waits", gate="gate", value=n) for n in range(2)]
    scene.begun()
    wait_until(lambda: any("deferred" in worker.log() for worker in workers), what="a job that is deferred")
    scene.open()

    assert sorted(scene.result(job) for job in called) == [0, 1]
    assert scene.runs == 2 and not scene.overlaps
