"""A function that is guarded for both queues: whichever has the work, the other does not do it too."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import Any

import pytest
from rq import Queue

from taskguard import PayloadMismatchError
from tests.bodies import DIRECTORY
from tests.rq import shared
from tests.rq.scene import OURS, Scene, WorkerProcess
from tests.servers import RedisServer


@pytest.fixture
def both(make_scene: Any, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> tuple[Scene, ModuleType]:
    monkeypatch.setenv(shared.URL, own_redis.url)
    scene = make_scene(own_redis.url)
    module = importlib.reload(shared)
    return scene, module


def start_celery(scene: Scene) -> WorkerProcess:
    command = [sys.executable, "-m", "celery", "-A", "tests.rq.shared", "worker", "-P", "solo", "-l", "INFO"]
    environment = {**os.environ, DIRECTORY: str(scene.directory), shared.URL: scene.url}
    worker = WorkerProcess(command, scene.directory / "celery.log", environment)
    scene.workers.append(worker)
    worker.wait_for_log(" ready.")
    return worker


def test_both_make_the_same_key(both: tuple[Scene, ModuleType]):
    _, module = both

    assert module.charge.taskguard.key("7") == module.charge_on_celery.taskguard.key("7")
    assert module.charge.taskguard.key("7").startswith("billing:")


def test_a_function_without_a_key_space_shares_nothing(scene: Scene):
    from tests.rq import jobs

    assert jobs.job_.taskguard.key("7").startswith("rq:tests.rq.jobs.job_:")


def test_work_that_rq_has_is_not_done_by_celery(both: tuple[Scene, ModuleType]):
    scene, module = both
    start_celery(scene)
    job = scene.queue.enqueue(module.charge, scene.key, gate="gate", value="by RQ")
    queued = module.charge_on_celery.delay(scene.key)
    assert queued.taskguard.duplicate
    scene.start_worker(OURS)
    scene.begun()
    running = module.charge_on_celery.delay(scene.key)
    assert running.taskguard.duplicate and running.taskguard.state == "running"
    scene.passes(1)
    scene.open()

    assert scene.result(job) == "by RQ"
    scene.passes(1)
    assert scene.runs == 1 and scene.begun()[0]["fenced_by"] == f"rq:{job.id}"


def test_work_that_celery_has_is_not_done_by_rq(both: tuple[Scene, ModuleType]):
    scene, module = both
    start_celery(scene)
    scene.start_worker(OURS)
    result = module.charge_on_celery.delay(scene.key, gate="gate", value="by Celery")
    scene.begun()
    job = scene.queue.enqueue(module.charge, scene.key)
    assert job.taskguard.duplicate and job.taskguard.owner == result.id and job.id != result.id
    scene.wait_for_duplicate(job)
    scene.open()

    assert result.get(timeout=20) == "by Celery"
    assert scene.result(job) == "by Celery"  # it joined its twin
    assert scene.runs == 1


def test_work_that_is_queued_at_celery_is_not_done_by_rq(both: tuple[Scene, ModuleType]):
    scene, module = both
    result = module.charge_on_celery.delay(scene.key, value="by Celery")
    scene.start_worker(OURS)
    job = scene.queue.enqueue(module.charge, scene.key)
    scene.passes(3)
    assert scene.runs == 0  # it gives way to the one in the other queue
    start_celery(scene)

    assert result.get(timeout=20) == "by Celery" and scene.result(job) == "by Celery"
    assert scene.runs == 1


# -- a caller's own key -----------------------------------------------------------------------------------------------


def test_an_idempotency_key_stands_for_one_function_only_at_either_queue(both: tuple[Scene, ModuleType]):
    """Two functions that share their keys: the outcome of one is no answer to a call of the other."""
    scene, module = both
    scene.queue.enqueue(module.charge, scene.key, idempotency_key="order")
    with pytest.raises(PayloadMismatchError):
        scene.queue.enqueue(module.refund, scene.key, idempotency_key="order")
    module.same_on_celery.apply_async((scene.key,), idempotency_key="another order")
    with pytest.raises(PayloadMismatchError):
        module.refund_on_celery.apply_async((scene.key,), idempotency_key="another order")


def test_an_idempotency_key_stands_for_the_same_call_in_both_queues(both: tuple[Scene, ModuleType]):
    scene, module = both
    job = scene.queue.enqueue(module.charge, scene.key, value=1, idempotency_key="order")

    same = module.same_on_celery.apply_async((scene.key,), {"value": 1}, idempotency_key="order")
    assert same.taskguard.duplicate and same.taskguard.owner == f"rq:{job.id}"
    with pytest.raises(PayloadMismatchError):
        module.same_on_celery.apply_async((scene.key,), {"value": 2}, idempotency_key="order")
    with pytest.raises(PayloadMismatchError):
        module.charge_on_celery.apply_async((scene.key,), {"value": 1}, idempotency_key="order")  # another name


def test_a_worker_compares_the_function_too(both: tuple[Scene, ModuleType]):
    """Whatever was left to it by a plain queue."""
    scene, module = both
    scene.queue.enqueue(module.charge, scene.key, idempotency_key="order")
    job = Queue(scene.queue.name, connection=scene.connection).enqueue(module.refund, scene.key)
    note = scene.note(job)._replace(idempotency_key="order")
    at_worker = module.refund.taskguard.identified(note, (scene.key,), {})

    assert at_worker.payload.startswith("tests.rq.shared.refund:")
