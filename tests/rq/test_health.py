"""What a probe learns of RQ's cron and workers: `taskguard health cron`, `taskguard health worker`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from taskguard.cli.main import taskguard
from tests.rq import timed
from tests.rq.scene import Scene
from tests.servers import Proxy, RedisServer
from tests.waiting import wait_until

EVERY_SECOND = {"function": "brief", "args": ["every second"], "interval": 1, "overlap": "allow_all"}


def becomes(code: int, role: str, file: Path, *arguments: str) -> str:
    """What the probe says once it has that exit code."""
    said = []

    def has_it() -> bool:
        answer = CliRunner().invoke(taskguard, ["health", role, "--file", str(file), *arguments], prog_name="taskguard")
        said.append(answer.output)
        return answer.exit_code == code

    wait_until(has_it, timeout=60, what=f"exit code {code} of {role}")
    return said[-1]


def test_a_cron_is_healthy_until_it_is_killed(scene: Scene, tmp_path: Path):
    file = tmp_path / "health"
    cron = scene.start_cron([EVERY_SECOND], environment={"TASKGUARD_HEALTH_FILE": str(file)})

    assert "The cron is healthy." in becomes(0, "cron", file)
    cron.kill()
    assert "the cron is dead or stuck" in becomes(1, "cron", file, "--max-age", "3")


def test_a_cron_whose_redis_is_away_is_alive_and_says_so(
    redis_server: RedisServer, proxy: Proxy, make_scene, tmp_path: Path
):
    scene = make_scene(proxy.url(redis_server.url))
    file = tmp_path / "health"
    scene.start_cron([EVERY_SECOND], environment={"TASKGUARD_HEALTH_FILE": str(file)})
    becomes(0, "cron", file)
    proxy.refuse()

    assert "the store does not answer" in becomes(3, "cron", file, "--store", scene.url)
    wait_until(lambda: "It waits for the store" in becomes(0, "cron", file), timeout=60)
    proxy.heal()
    assert "The store answers" in becomes(0, "cron", file, "--store", scene.url)


@pytest.mark.parametrize("kind", ["taskguard.rq.GuardedWorker", "taskguard.rq.GuardedSimpleWorker"])
def test_a_worker_is_healthy_until_it_is_killed(scene: Scene, tmp_path: Path, kind: str):
    file = tmp_path / "health"
    worker = scene.start_worker(kind, environment={"TASKGUARD_HEALTH_FILE": str(file)})

    assert f"process {worker.pid} " in becomes(0, "worker", file)
    scene.queue.enqueue(timed.plain, "a job")
    scene.ledger.wait_for("ran", 1)
    assert f"process {worker.pid} " in becomes(0, "worker", file)  # and not that of its horse
    worker.kill()
    becomes(1, "worker", file, "--max-age", "6")
