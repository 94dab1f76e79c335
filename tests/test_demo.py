from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from tests.waiting import wait_until


def processes_of(folder_name: str) -> list[str]:
    done = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if folder_name in line]


def test_the_demo_keeps_the_score():
    done = subprocess.run([sys.executable, "-m", "taskguard.demo"], capture_output=True, text=True, timeout=100)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "guarded effects: 3 expected, 3 found, 0 lost, 0 doubled" in done.stdout
    assert "charged 2 times" in done.stdout
    assert "refused" in done.stdout


def test_an_interrupted_demo_leaves_no_process_behind(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "taskguard.demo"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as demo:
        assert demo.stdout is not None
        while "kill -9" not in demo.stdout.readline():  # in the middle: workers run
            pass
        time.sleep(0)
        demo.send_signal(signal.SIGINT)
        demo.stdout.read()

        assert demo.wait(20) == 130
    wait_until(lambda: not processes_of(str(tmp_path)))
