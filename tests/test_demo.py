"""The demo as its users start it, and as they end it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from taskguard.demo.score import Row, Score
from taskguard.demo.server import find_server
from taskguard.errors import ConfigurationError
from tests.waiting import wait_until

DEMO = [sys.executable, "-u", "-m", "taskguard.cli", "demo", "--fast"]


@pytest.fixture(autouse=True)
def _server() -> None:
    try:
        find_server()
    except ConfigurationError as missing:
        pytest.skip(str(missing))  # there is no Valkey wheel for Python 3.10


def processes_of(folder: Path) -> list[str]:
    """The processes that were told of the folder, stopped ones too."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if str(folder).encode() in told and state != "Z":
            found.append(f"{process.name} {state}")
    return found


def test_the_demo_keeps_the_score_and_leaves_the_broker_of_the_user_alone():
    # Nobody is there: whoever asks that broker, backend or store gets nowhere.
    of_the_user = ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_RESULT_BACKEND", "TASKGUARD_STORE")
    environment = {**os.environ, **dict.fromkeys(of_the_user, "redis://127.0.0.1:1"), "DJANGO_SETTINGS_MODULE": "mine"}
    done = subprocess.run([*DEMO, "--json"], capture_output=True, text=True, timeout=110, env=environment)

    assert done.returncode == 0, done.stdout + done.stderr
    score = json.loads(done.stdout)
    assert score["right"]
    assert all(act["found"] == act["expected"] for act in score["acts"] if act["is_guarded"])
    assert [act["doubled"] for act in score["acts"] if not act["is_guarded"]] == [1]
    assert "500 calls: 1 published, 499 got its handle" in done.stderr
    assert "under a higher token, and charged" in done.stderr
    assert "is refused                   charges a second time" in done.stderr
    assert max(map(len, done.stderr.splitlines())) <= 80


@pytest.mark.faults
def test_without_the_guard_the_demo_finds_that_it_is_wrong():
    environment = {**os.environ, "TASKGUARD_OFF": "1"}
    done = subprocess.run([*DEMO, "--json"], capture_output=True, text=True, timeout=110, env=environment)

    assert done.returncode == 1
    celery, rq, *_ = json.loads(done.stdout)["acts"]
    assert celery["found"] == 500 and rq["found"] > 1


@pytest.mark.parametrize(
    ("number", "moment", "code"),
    [
        (signal.SIGTERM, "taskguard:", 143),
        (signal.SIGINT, "threads call", 130),
        (signal.SIGKILL, "is stopped (SIGSTOP)", -signal.SIGKILL),
    ],
    ids=["SIGTERM at the beginning", "SIGINT twice, amid the calls", "SIGKILL while a worker is stopped"],
)
def test_a_demo_that_is_ended_leaves_nothing_behind(number: signal.Signals, moment: str, code: int, tmp_path: Path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(DEMO, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True) as demo:
        assert demo.stdout is not None
        seen = ""
        while moment not in seen:
            line = demo.stdout.readline()
            assert line, seen
            seen += line
        wait_until(lambda: len(processes_of(tmp_path)) > 5, what="the demo, its keeper, a server and three workers")
        demo.send_signal(number)
        if number is signal.SIGINT:  # people press it again
            time.sleep(0.3)
            demo.send_signal(number)

        assert demo.wait(30) in (code, -number)
    wait_until(lambda: not processes_of(tmp_path), what=str(processes_of(tmp_path)))
    wait_until(lambda: not list(tmp_path.iterdir()), what=f"{list(tmp_path.iterdir())} to go")


@pytest.mark.parametrize(
    "row",
    [Row("lost", 1, 0, 1, 0), Row("doubled", 1, 2, 0, 1), Row("plain", 1, 1, 0, 0, is_guarded=False)],
    ids=lambda row: row.act,
)
def test_a_score_is_wrong_if_an_effect_is_lost_or_doubled_or_nothing_was_shown(row: Row):
    right = (Row("right", 1, 1, 0, 0), Row("plain", 1, 2, 0, 1, is_guarded=False))

    assert Score(right).is_right
    assert not Score((*right, row)).is_right
