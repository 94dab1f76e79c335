"""The classes of workers there are; and what becomes of jobs that are not guarded."""

from __future__ import annotations

from typing import Any

import pytest
from rq import Queue, Retry
from rq.command import send_stop_job_command
from rq.job import Callback

from taskguard.protocol.store import Lease
from taskguard.rq.guarding import Settings
from taskguard.rq.settle import settle_for
from taskguard.schedule.running import claim_of
from tests.rq import jobs
from tests.rq.scene import OURS, PLAIN, Scene
from tests.schedule.bench import every
from tests.servers import require
from tests.waiting import wait_until

SIMPLE = "taskguard.rq.GuardedSimpleWorker"
SPAWN = "taskguard.rq.GuardedSpawnWorker"
every_worker = pytest.mark.parametrize("kind", [OURS, SIMPLE, SPAWN, "rq.SimpleWorker", "rq.worker.SpawnWorker"])


@every_worker
def test_each_class_of_workers_runs_guarded_jobs(scene: Scene, kind: str):
    scene.start_worker(kind)
    job = scene.call(gate="gate", value="one")
    scene.begun()
    assert scene.state() == "running" and scene.call().id == job.id
    scene.open()
    assert scene.result(job) == "one"
    failed = scene.call(then="fail once", retry=Retry(max=1), value="two")

    assert scene.result(failed) == "two" and scene.state() == "done"
    assert scene.runs == 3


@pytest.mark.parametrize("kind", [SIMPLE, SPAWN])
def test_each_class_of_our_workers_drops_a_leftover_copy(scene: Scene, kind: str):
    job = scene.call(value=1, on_success=Callback(jobs.told))
    scene.queue.push_job_id(job.id)
    scene.burst(kind)

    assert scene.runs == 1 and scene.ledger.count("told") == 1 and scene.status(job) == "finished"


def test_a_killed_horse_that_was_spawned(scene: Scene):
    scene.start_worker(SPAWN)
    job = scene.call(then="die once", retry=Retry(max=2), value="second")

    assert scene.result(job) == "second"
    assert [line["starts"] for line in scene.begun(2)] == [1, 2]


@pytest.mark.parametrize("kind", [SIMPLE, pytest.param(SPAWN, marks=pytest.mark.faults)])
def test_a_job_that_waits_is_put_back(scene: Scene, kind: str):
    scene.start_worker(kind)
    scene.start_worker(kind)
    called = [scene.call("waits", gate="gate", value=n) for n in range(2)]
    scene.begun()
    scene.passes(4.5)
    scene.open()

    assert sorted(scene.result(job) for job in called) == [0, 1]
    assert scene.runs == 2 and not scene.overlaps


def test_the_worker_pool(scene: Scene):
    scene.start_worker(OURS, "--num-workers", "2", command="worker-pool")
    one = scene.call(gate="gate", value=1)
    two = scene.call(key=f"{scene.key}-other", gate="gate", value=2)
    scene.begun()
    scene.begun(key=f"{scene.key}-other")
    scene.open()

    assert (scene.result(one), scene.result(two)) == (1, 2)
    dies = scene.call(then="die")
    scene.wait_for_status(dies, "failed")
    assert scene.state() == "free"


# -- jobs that are not guarded -----------------------------------------------------------------------------------------


def _facts(scene: Scene, kind: str, queue: Any, then: str, **options: Any) -> Any:
    """All that can be seen of an unguarded job, once it has ended."""
    told = scene.ledger.count("told")
    runs = scene.ledger.count("begin", key="plain")
    callbacks = {"on_success": Callback(jobs.told), "on_failure": Callback(jobs.told)}
    job = queue.enqueue(jobs.plain, "plain", then, value=3, **callbacks, **options)
    worker = scene.start_worker(kind)
    wait_until(lambda: scene.status(job) in ("finished", "failed"), what=worker.log())
    worker.stop()
    found = scene.fetch(job)
    return (
        scene.status(job),
        found.return_value(),
        [result.type.name for result in job.results()],
        found.retries_left,
        found.number_of_retries,
        found.meta,
        scene.ledger.count("told") - told,
        scene.ledger.count("begin", key="plain") - runs,
        sorted(scene.connection.hkeys(job.key)),
    )


@pytest.mark.parametrize(
    ("then", "options"),
    [
        ("return", {}),
        ("fail", {}),
        ("fail", {"retry": Retry(max=1)}),
        pytest.param("return Retry once", {}, marks=pytest.mark.faults),
        ("die", {}),
        pytest.param("sleep", {"job_timeout": 1}, marks=pytest.mark.faults),
    ],
)
def test_jobs_that_are_not_guarded_are_as_before(scene: Scene, then: str, options: dict[str, Any]):
    plain = Queue(scene.queue.name, connection=scene.connection)

    assert _facts(scene, OURS, scene.queue, then, **options) == _facts(scene, PLAIN, plain, then, **options)


def test_a_job_that_is_not_guarded_can_be_stopped_as_before(scene: Scene):
    scene.start_worker(OURS)
    job = scene.queue.enqueue(jobs.plain, scene.key, gate="gate", on_stopped=Callback(jobs.told))
    scene.begun()
    send_stop_job_command(scene.connection, job.id)
    scene.wait_for_status(job, "stopped")

    assert scene.ledger.count("told") == 1


def test_the_same_id_twice_is_as_before_for_jobs_that_are_not_guarded(scene: Scene):
    scene.queue.enqueue(jobs.plain, scene.key, job_id=f"twice-{scene.key}")
    scene.queue.enqueue(jobs.plain, scene.key, job_id=f"twice-{scene.key}")
    scene.burst(OURS)

    assert scene.runs == 2


@pytest.mark.faults  # a server of its own for each, and a certificate
@pytest.mark.parametrize("way", ["url", "tls_url", "unix_url"])
def test_over_every_way_to_reach_redis(make_scene: Any, way: str):
    with require("redis-7-tls", password="p@ss/w?rd#", unix_socket=True) as server:
        scene = make_scene(getattr(server, way))
        job = scene.call("short", then="sleep two seconds", value="kept")  # longer than its lease
        assert scene.call("short").id == job.id
        scene.burst()

        assert scene.result(job) == "kept" and scene.runs == 1


def test_a_slot_whose_process_is_gone_waits_as_long_as_any_other_job_for_its_retry(scene: Scene):
    slot = every(3600, scene.key).slot(1_794_873_600_000_000)
    job = scene.publish(slot, jobs.job_, scene.key)
    guard = jobs.job_.taskguard.guard(scene.connection, scene.queue.serializer)
    assert isinstance(guard.store.claim(claim_of(slot.note(), job.id, 60, "gone")), Lease)
    job.retries_left = 1
    settle_for(job, jobs.job_.taskguard, "gone")

    run = scene.entry_of(slot.run_key)
    assert run.state == "queued" and run.remaining == pytest.approx(Settings().queued_for, abs=5)
