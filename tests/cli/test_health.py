"""`taskguard health`: what a probe learns of beats and workers: real ones, that die, stop and lose their servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.schedule.deployment import PROJECT, ROOT, Deployment, deployed
from tests.servers import Proxy, RedisServer
from tests.waiting import wait_until

Run = Callable[..., Result]
EACH_SECOND = {"pulse": {"task": "plain", "schedule": 1, "options": {"overlap": "allow_all"}}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "{role}.json"


@pytest.fixture
def place(redis_server: RedisServer, tmp_path: Path, file: Path) -> Iterator[Deployment]:
    url = redis_server.url
    with deployed(tmp_path, broker=url, store=url, entries=EACH_SECOND, taskguard_health_file=str(file)) as place:
        yield place


def becomes(run: Run, code: int, role: str, *arguments: str) -> Result:
    """The probe's answer once it has that exit code."""
    answers: list[Result] = []

    def has_it() -> bool:
        answers.append(run("health", role, *arguments))
        return answers[-1].exit_code == code

    wait_until(has_it, timeout=60, what=f"exit code {code} of {role}")
    return answers[-1]


# -- a beat ------------------------------------------------------------------------------------------------------------


def test_a_beat_is_healthy_until_it_is_killed(place: Deployment, file: Path, run: Run):
    assert run("health", "beat", "--file", str(file)).exit_code == 1  # none has started
    beat = place.beat()

    healthy = becomes(run, 0, "beat", "--file", str(file))
    assert "The beat is healthy." in healthy.output
    beat.kill()
    dead = becomes(run, 1, "beat", "--file", str(file), "--max-age", "2")
    assert "the beat is dead or stuck: its last heartbeat was" in dead.output


def test_a_beat_that_is_stopped_is_not_healthy_until_it_goes_on(place: Deployment, file: Path, run: Run):
    beat = place.beat()
    arguments = ["beat", "--file", str(file), "--max-age", "6"]  # it ticks every five seconds at least
    becomes(run, 0, *arguments)
    beat.stop()
    becomes(run, 1, *arguments)
    beat.resume()

    becomes(run, 0, *arguments)


def test_a_beat_whose_store_is_away_is_alive_and_says_so(
    redis_server: RedisServer, proxy: Proxy, tmp_path: Path, file: Path, run: Run
):
    def says() -> str:
        return run("health", "beat", "--file", str(file)).output

    store = proxy.url(redis_server.url)
    with deployed(
        tmp_path, broker=redis_server.url, store=store, entries=EACH_SECOND, taskguard_health_file=str(file)
    ) as place:
        place.beat()
        asked = ["--file", str(file), "--store", store, "--namespace", place.queue]
        assert "The store answers within" in becomes(run, 0, "beat", *asked).output
        proxy.refuse()
        away = becomes(run, 3, "beat", *asked)
        assert "the store does not answer: " in away.output
        wait_until(lambda: "It waits for the store: " in says(), timeout=60)
        assert run("health", "beat", "--file", str(file)).exit_code == 0  # to start it again would not help
        proxy.heal()

        wait_until(lambda: "It waits for the store: " not in says(), timeout=60)
        becomes(run, 0, "beat", *asked)


def test_a_slot_that_cannot_be_sent_is_late(
    redis_server: RedisServer, proxy: Proxy, tmp_path: Path, file: Path, run: Run
):
    broker = proxy.url(redis_server.url)
    with deployed(
        tmp_path, broker=broker, store=redis_server.url, entries=EACH_SECOND, taskguard_health_file=str(file)
    ) as place:
        beat = place.beat()
        wait_until(lambda: beat.has_said("Sending due task pulse"), timeout=60)
        asked = ["beat", "--file", str(file), "--max-late", "2"]
        becomes(run, 0, *asked)
        proxy.refuse()
        late = becomes(run, 1, *asked)
        proxy.heal()

        assert "of pulse has been due for" in late.output
        becomes(run, 0, *asked)


def test_the_answer_for_programs_has_the_facts(place: Deployment, file: Path, run: Run):
    beat = place.beat()
    becomes(run, 0, "beat", "--file", str(file))
    found = json.loads(run("health", "beat", "--file", str(file), "--json").output)

    assert found["healthy"] and found["problems"] == [] and found["role"] == "beat"
    assert 0 <= found["age"] < 90 and found["store"] is None
    assert found["heartbeat"]["pid"] == beat.process.pid
    assert {"store_error", "oldest_due"} <= found["heartbeat"].keys()


def test_with_an_app_the_file_and_the_store_are_its_own(place: Deployment, run: Run):
    place.beat()
    variables = {**os.environ, **place.environment, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "taskguard.cli", "health", "beat", "-A", PROJECT, "--json"]

    def asked() -> Any:
        return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=60)

    answer = wait_until(lambda: found if (found := asked()).returncode == 0 else None, timeout=60)
    found = json.loads(answer.stdout)
    assert found["file"] == str(place.directory / "beat.json")
    assert found["store"]["answers"] is True


def test_the_environment_goes_before_the_setting(place: Deployment, tmp_path: Path, run: Run, monkeypatch: Any):
    place.environment["TASKGUARD_HEALTH_FILE"] = str(tmp_path / "own")
    place.beat()
    monkeypatch.setenv("TASKGUARD_HEALTH_FILE", str(tmp_path / "own"))

    becomes(run, 0, "beat")
    assert not (tmp_path / "beat.json").exists()


def test_a_file_that_cannot_be_written_stops_no_beat(redis_server: RedisServer, tmp_path: Path):
    url, nowhere = redis_server.url, str(tmp_path / "none" / "beat")
    with deployed(tmp_path, broker=url, store=url, entries=EACH_SECOND, taskguard_health_file=nowhere) as place:
        beat = place.beat()
        wait_until(lambda: beat.log.read_text().count("Sending due task pulse") > 2, timeout=60)

        assert beat.log.read_text().count("could not write the heartbeat file") == 1


# -- a worker ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_a_worker_is_healthy_until_it_is_killed(place: Deployment, file: Path, run: Run, pool: str):
    worker = place.worker(pool)
    place.wait_until_ready()

    healthy = becomes(run, 0, "worker", "--file", str(file))
    assert f"worker0@{place.queue}" in healthy.output
    worker.kill()
    becomes(run, 1, "worker", "--file", str(file), "--max-age", "6")


def test_a_worker_says_that_it_has_lost_its_broker(
    redis_server: RedisServer, proxy: Proxy, tmp_path: Path, file: Path, run: Run
):
    def says() -> str:
        return run("health", "worker", "--file", str(file)).output

    broker = proxy.url(redis_server.url)
    with deployed(
        tmp_path, broker=broker, store=redis_server.url, entries={}, taskguard_health_file=str(file)
    ) as place:
        place.worker("prefork")
        place.wait_until_ready()
        becomes(run, 0, "worker", "--file", str(file))
        proxy.refuse()
        wait_until(lambda: "lost its connection to the broker" in says(), timeout=60)
        becomes(run, 1, "worker", "--file", str(file), "--max-age", "6")
        proxy.heal()

        becomes(run, 0, "worker", "--file", str(file), "--max-age", "6")
        assert "lost its connection" not in says()


# -- the file ----------------------------------------------------------------------------------------------------------


def test_a_file_of_another_role_is_not_taken_for_this_one(tmp_path: Path, run: Run):
    (tmp_path / "shared").write_text(json.dumps({"role": "worker", "at": time.time(), "pid": 1, "host": "here"}))
    answer = run("health", "beat", "--file", str(tmp_path / "shared"))

    assert answer.exit_code == 1
    assert "is the heartbeat file of a worker; give each its own, as with {role} in the name" in answer.output


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"role": "beat", "at": "now"}'])
def test_what_is_not_a_heartbeat_file_is_not_healthy(tmp_path: Path, run: Run, text: str):
    (tmp_path / "file").write_text(text)
    answer = run("health", "beat", "--file", str(tmp_path / "file"))

    assert answer.exit_code == 1
    assert "could not read the heartbeat file" in answer.output


def test_without_a_file_the_command_asks_for_one(run: Run):
    answer = run("health", "worker")

    assert answer.exit_code == 2
    assert "which heartbeat file? Give --file, or set TASKGUARD_HEALTH_FILE" in answer.output


def test_a_link_that_somebody_laid_is_not_followed(tmp_path: Path):
    from taskguard.runtime.health_file import HealthFile, read

    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "beat").symlink_to(victim)
    (tmp_path / f"beat.{os.getpid()}").symlink_to(victim)
    HealthFile(tmp_path / "beat", "beat").write(dict)

    assert victim.read_text() == "mine"
    assert (read(tmp_path / "beat") or {})["role"] == "beat"


def test_a_setting_that_is_no_path_is_refused():
    from taskguard import ConfigurationError
    from taskguard.celery.settings import Settings

    with pytest.raises(ConfigurationError, match="taskguard_health_file must be the path of a file, not True"):
        Settings(health_file=True)  # type: ignore[arg-type]
