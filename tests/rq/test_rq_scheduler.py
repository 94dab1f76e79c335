"""What rq-scheduler does with periodic jobs when it dies: that is out of a guard's reach, and the docs say so."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from rq.job import Job

from tests.rq import jobs
from tests.rq.scene import Scene

pytestmark = pytest.mark.faults  # its processes begin with an interpreter of their own: seconds each
SCHEDULED = "rq:scheduler:scheduled_jobs"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Apart: what it needs has the same name as what django-celery-beat needs, and is another thing."""
    place = tmp_path_factory.mktemp("rq_scheduler")
    line = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(place),
        "rq-scheduler==0.14.0",
    ]
    if subprocess.run(line, capture_output=True, timeout=60).returncode:
        pytest.skip("rq-scheduler cannot be had here")
    return place


def _round(scene: Scene, package: Path, point: str = "") -> int:
    line = ["tests.rq.their_scheduler", point, scene.url]
    return scene.start_cron([], *line, environment={"PYTHONPATH": str(package)}).wait(30)


@pytest.fixture
def job(scene: Scene) -> Any:
    """As its `schedule()` makes one, every minute; and its time has come."""
    facts = {"meta": {"interval": 60}, "origin": scene.queue.name, "result_ttl": -1}
    made = Job.create(jobs.job_, (scene.key,), connection=scene.connection, **facts)
    made.save()
    scene.connection.zadd(SCHEDULED, {made.id: datetime.now().timestamp() - 1})
    yield made
    scene.connection.delete(SCHEDULED)


def test_rq_scheduler_enqueues_an_occurrence_once(scene: Scene, job: Any, package: Path):
    assert _round(scene, package) == 0
    assert _round(scene, package) == 0
    scene.burst()

    assert scene.runs == 1 and scene.connection.zscore(SCHEDULED, job.id)


def test_rq_scheduler_dies_and_an_occurrence_runs_twice(scene: Scene, job: Any, package: Path):
    """The second message is a new enqueueing of the same id, as any later occurrence is."""
    assert _round(scene, package, "enqueued") == -9
    scene.burst()
    assert _round(scene, package) == 0
    scene.burst()

    assert scene.runs == 2


def test_rq_scheduler_dies_and_the_job_is_scheduled_no_more(scene: Scene, job: Any, package: Path):
    assert _round(scene, package, "taken out") == -9

    assert scene.connection.zscore(SCHEDULED, job.id) is None
