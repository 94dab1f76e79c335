"""`TASKGUARD_OFF=1` for a whole worker: its tasks run as Celery alone would run them, and no store is needed."""

from __future__ import annotations

import pytest
from celery.exceptions import TaskRevokedError

from taskguard.testing import unguarded
from tests.celery.jobs import TroubleError
from tests.celery.scene import Scene


def test_a_worker_that_is_switched_off_runs_every_message(make_fleet, tmp_path):
    fleet = make_fleet(conf={"taskguard_store": "redis://127.0.0.1:1"})  # nobody is there
    fleet.start_worker(environment={"TASKGUARD_OFF": "1"})
    scene = Scene(fleet, tmp_path)
    with unguarded():
        results = [scene.call(value=number) for number in range(3)]
        failed = scene.call(then="fail")

        assert [result.get(timeout=20) for result in results] == [0, 1, 2]
        with pytest.raises(TroubleError):
            failed.get(timeout=20)
        stopped = scene.call(gate=scene.key)
        scene.begun(5)
        fleet.app.control.revoke(stopped.id, terminate=True)
        with pytest.raises(TaskRevokedError):
            stopped.get(timeout=20)
    log = fleet.workers[0].log()
    assert "this process guards nothing" in log
    assert "settle it" not in log  # the parent did not ask the store either
