"""Commands about what real workers do: a duplicate that a worker made, a holder that was killed."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from taskguard.doctor import examine
from taskguard.doctor.broker import SETTLES_WITHIN, _ids_at_workers
from taskguard.history import decisions
from tests.celery.scene import Scene
from tests.cli.conftest import Run
from tests.waiting import wait_until

APP = ("-A", "tests.celery.tasks")

# An app of an earlier test shares its tasks with this one, which has them itself.
pytestmark = pytest.mark.filterwarnings("ignore:Task name")


def answer(result: Any) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def kinds(explained: Any) -> list[tuple[str, str]]:
    return [(decision["kind"], decision["state"]) for decision in explained["decisions"]]


def test_a_duplicate_at_a_worker_is_explained(scene: Scene, run: Run):
    scene.fleet.start_worker()
    running = scene.call("while_running", gate="gate", value="secret-value")
    [begun] = scene.begun()
    duplicate = scene.call("while_running", value="another-secret")
    wait_until(
        lambda: ("duplicate", "running") in kinds(answer(run("explain", *APP, "while_running", scene.key, "--json")))
    )
    explained = answer(run("explain", *APP, "while_running", scene.key, "--json"))
    shown = run("explain", *APP, "while_running", scene.key).stdout

    # It joins its twin, so it is put back and asks again.
    skip, *_ = [decision for decision in explained["decisions"] if decision["kind"] == "duplicate"]
    assert (skip["owner"], skip["holder"]) == (duplicate.id, running.id)
    assert "value" in skip["differs"] and "key" not in skip["differs"]
    assert skip["where"].split(":")[0] in shown
    assert f"job {running.id} at " in shown and f":{begun['pid']}" in shown
    assert "secret" not in shown + json.dumps(explained)
    store = scene.job("job").taskguard.app_guard.guard.store
    assert "secret" not in "".join(line.text for line in store.history.read())
    scene.gate.open("gate")
    assert running.get(timeout=20) == "secret-value"


def test_a_holder_that_was_killed_is_shown_and_the_one_that_took_over(scene: Scene, run: Run):
    worker = scene.fleet.start_worker(concurrency=1)
    held = scene.call("short", gate="gate")
    scene.begun()
    key = scene.job("short").taskguard.key(scene.key)
    wait_until(lambda: decisions(scene.job("short").taskguard.app_guard.guard.store, key))
    worker.kill()

    wait_until(lambda: [e["state"] for e in answer(run("ls", *APP, "--json"))] == ["ran-out"])
    assert "dead, stopped, or cut off" in run("explain", *APP, key).stdout
    assert held.id in run("show", *APP, "short", json.dumps(scene.key)).stdout


def test_a_running_job_that_is_released_by_hand_is_told(scene: Scene, run: Run):
    scene.fleet.start_worker()
    scene.call("short", gate="gate")
    scene.begun()
    result = run("release", *APP, "short", f"key={scene.key}", "--yes", "--json")
    assert len(answer(result)["released"]) == 1

    wait_until(
        lambda: "lost" in [kind for kind, _ in kinds(answer(run("explain", *APP, "short", scene.key, "--json")))]
    )
    stats = answer(run("stats", *APP, "--json"))
    assert stats["tasks"]["short"]["lost"] >= 1
    scene.gate.open("gate")


def test_an_app_can_do_without_a_history(make_fleet: Any, tmp_path: Any):
    from tests.celery.settings import AT_LEAST_ONCE

    scene = Scene(make_fleet(conf={**AT_LEAST_ONCE, "taskguard_history": False}), tmp_path)
    scene.fleet.start_worker()
    assert scene.call(value=1).get(timeout=20) == 1

    store = scene.job("job").taskguard.app_guard.guard.store
    assert store.execute("EXISTS", "taskguard:history:{taskguard}:ordinary") == 0


def test_a_child_of_the_pool_tells_before_it_ends(scene: Scene, monkeypatch: Any):
    from celery.signals import worker_process_shutdown

    monkeypatch.setattr("taskguard.history.GATHER", 60)
    guard = scene.job("job").taskguard.app_guard.guard
    guard.run("key", int, keep_for=60)
    assert decisions(guard.store) == []
    worker_process_shutdown.send(sender=None, pid=1, exitcode=0)

    assert [decision.event.kind for decision in decisions(guard.store)] == ["claimed", "completed"]


def test_after_celery_purge_the_keys_of_the_purged_jobs_can_be_released(scene: Scene, run: Run):
    purged = scene.call(value="purged")
    assert scene.fleet.app.control.purge() == 1
    assert scene.call().id == purged.id  # and nothing will run

    released = answer(run("release", *APP, "--queued", "--task", "job", "--yes", "--json"))["released"]

    assert [entry["owner"] for entry in released] == [purged.id]
    scene.fleet.start_worker()
    assert scene.call(value="next").get(timeout=20) == "next"


def test_the_doctor_sees_the_messages_that_a_busy_worker_keeps(scene: Scene):
    scene.fleet.start_worker(concurrency=1, options=["--prefetch-multiplier=4"])
    scene.call("while_running", gate="gate")
    scene.begun()
    kept = scene.call("job", key="kept")
    wait_until(lambda: kept.id in _ids_at_workers(scene.fleet.app))
    wait_until(lambda: time.time() - scene.entry(key="kept").since > SETTLES_WITHIN)

    store = scene.job("job").taskguard.app_guard.guard.store
    assert "TG211" not in [finding.id for finding in examine(store, scene.fleet.app)]
    scene.gate.open("gate")
    kept.get(timeout=20)
