"""Jobs that rq-scheduler enqueues under one id, time after time; and what it does with them when it dies.

The latter is out of a guard's reach, and the docs say so.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from rq import SimpleWorker
from rq.job import Job

from taskguard.rq import GuardedQueue, GuardedSimpleWorker
from tests.rq import jobs
from tests.rq.aside import place, their_scheduler
from tests.rq.scene import Scene, both_workers

SCHEDULED = "rq:scheduler:scheduled_jobs"
both_kinds = pytest.mark.parametrize("kind", [GuardedSimpleWorker, SimpleWorker])


@pytest.fixture
def scheduler(scene: Scene) -> Iterator[Any]:
    made = their_scheduler()(queue_name=scene.queue.name, connection=scene.connection)
    made.scheduled_jobs_key = f"{SCHEDULED}:{scene.key}"
    yield made
    scene.connection.delete(made.scheduled_jobs_key)


def _schedule(scheduler: Any, scene: Scene, name: str, **options: Any) -> Job:
    due = datetime.utcnow() - timedelta(seconds=1)
    return scheduler.schedule(due, getattr(jobs, name), args=[scene.key], interval=60, **options)


def _pile_up(scheduler: Any, job: Job, times: int = 3) -> None:
    """Its time comes again and again, and no worker is there."""
    for _ in range(times):
        scheduler.connection.zadd(scheduler.scheduled_jobs_key, {job.id: datetime.now().timestamp() - 1})
        scheduler.enqueue_jobs()


# -- one id, many occurrences ------------------------------------------------------------------------------------------


@both_kinds
@pytest.mark.parametrize("name", ["waits", "job_", "while_running"])
def test_occurrences_that_pile_up_run_all_of_them(scene: Scene, scheduler: Any, kind: type[Any], name: str):
    job = _schedule(scheduler, scene, name)
    _pile_up(scheduler, job)
    assert scene.queue.job_ids == [job.id] * 3
    scene.work(kind)

    assert scene.runs == 3 and scene.queue.count == 0 and scene.status(job) == "finished"
    assert len({line["fenced"] for line in scene.begun(3)}) == 3  # each is a piece of work of its own


@both_kinds
def test_occurrences_that_fail_run_all_of_them(scene: Scene, scheduler: Any, kind: type[Any]):
    job = _schedule(scheduler, scene, "waits", kwargs={"then": "fail"})
    _pile_up(scheduler, job)
    scene.work(kind)

    assert scene.runs == 3 and scene.status(job) == "failed"


@both_kinds
def test_occurrences_that_pile_up_again_and_again(scene: Scene, scheduler: Any, kind: type[Any]):
    job = _schedule(scheduler, scene, "waits")
    for n in (1, 2, 3):
        _pile_up(scheduler, job, times=2)
        scene.work(kind)
        assert scene.runs == 2 * n


@both_workers
def test_occurrences_that_pile_up_run_one_at_a_time(scene: Scene, scheduler: Any, kind: str):
    job = _schedule(scheduler, scene, "waits", kwargs={"gate": "gate"})
    _pile_up(scheduler, job, times=4)
    scene.start_worker(kind), scene.start_worker(kind)
    scene.begun()
    scene.passes(0.5)
    scene.open()
    scene.ended(4)
    scene.wait_for_status(job, "finished")

    assert scene.runs == 4 and not scene.overlaps and scene.queue.count == 0


def test_an_occurrence_whose_horse_dies_takes_none_of_the_others_along(scene: Scene, scheduler: Any):
    job = _schedule(scheduler, scene, "waits", kwargs={"then": "die once"})
    scene.start_worker()
    for n, times in ((1, 1), (4, 3)):  # the first dies, and those after it find its name used up
        _pile_up(scheduler, job, times=times)
        scene.begun(n)
    scene.wait_for_status(job, "finished")

    assert scene.runs == 4 and not scene.overlaps and scene.state("waits") == "done"


@both_workers
def test_a_later_occurrence_that_comes_while_the_one_before_runs_waits_for_it(scene: Scene, scheduler: Any, kind: str):
    job = _schedule(scheduler, scene, "waits", kwargs={"gate": "gate"})
    scene.open()
    scheduler.enqueue_jobs()
    scene.burst(kind)
    scene.gate.shut()
    scene.start_worker(kind), scene.start_worker(kind)
    for _ in range(2):
        _pile_up(scheduler, job, times=1)
        scene.begun(2)
    scene.passes(0.5)
    scene.open()
    scene.ended(3)
    scene.wait_for_status(job, "finished")

    assert scene.runs == 3 and not scene.overlaps


@both_kinds
def test_occurrences_that_a_guarded_queue_enqueues(scene: Scene, scheduler: Any, kind: type[Any]):
    scheduler.queue_class = GuardedQueue
    job = _schedule(scheduler, scene, "waits")
    _pile_up(scheduler, job)
    scene.work(kind)

    assert scene.runs == 3


@both_kinds
def test_a_job_that_it_enqueues_once_runs_once(scene: Scene, scheduler: Any, kind: type[Any]):
    job = scheduler.enqueue_at(datetime.utcnow() - timedelta(seconds=1), jobs.job_, scene.key)
    scheduler.enqueue_jobs()
    scene.work(kind)
    scene.queue.push_job_id(job.id)  # a copy that nobody has enqueued
    scene.work(kind)

    assert scene.runs == 1


# -- when it dies ------------------------------------------------------------------------------------------------------


def _round(scene: Scene, point: str = "") -> int:
    line = ["tests.rq.their_scheduler", point, scene.url]
    return scene.start_cron([], *line, environment={"PYTHONPATH": str(place())}).wait(30)


@pytest.fixture
def job(scene: Scene) -> Iterator[Any]:
    """As its `schedule()` makes one, every minute; and its time has come."""
    facts = {"meta": {"interval": 60}, "origin": scene.queue.name, "result_ttl": -1}
    made = Job.create(jobs.job_, (scene.key,), connection=scene.connection, **facts)
    made.save()
    scene.connection.zadd(SCHEDULED, {made.id: datetime.now().timestamp() - 1})
    yield made
    scene.connection.delete(SCHEDULED)


@pytest.mark.faults  # its processes begin with an interpreter of their own: seconds each
def test_rq_scheduler_enqueues_an_occurrence_once(scene: Scene, job: Any):
    assert _round(scene) == 0
    assert _round(scene) == 0
    scene.burst()

    assert scene.runs == 1 and scene.connection.zscore(SCHEDULED, job.id)


@pytest.mark.faults
def test_rq_scheduler_dies_and_an_occurrence_runs_twice(scene: Scene, job: Any):
    """The second message is a new enqueueing of the same id, as any later occurrence is."""
    assert _round(scene, "enqueued") == -9
    scene.burst()
    assert _round(scene) == 0
    scene.burst()

    assert scene.runs == 2


@pytest.mark.faults
def test_rq_scheduler_dies_and_the_job_is_scheduled_no_more(scene: Scene, job: Any):
    assert _round(scene, "taken out") == -9

    assert scene.connection.zscore(SCHEDULED, job.id) is None
