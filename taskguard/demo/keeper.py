"""The process that starts all others, and kills them when the demo ends, however it ends.

The keeper must survive the demo, which the user may interrupt or kill. It runs in a session of its own, so that Ctrl-C
does not reach it. It starts each command that it reads from its input. When the input ends, because the demo closed it
or died, the keeper kills everything that it started and removes the folder.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any


def main(folder: str) -> None:
    started: list[subprocess.Popen[bytes]] = []
    for line in sys.stdin:
        started.append(_start(json.loads(line)))
        print(started[-1].pid, flush=True)
    # Nobody has waited for these processes yet, so the system cannot have reused their pids.
    leaders = {process.pid for process in started}
    give_up = time.monotonic() + 10
    while _kill(leaders) and time.monotonic() < give_up:
        time.sleep(0.02)
    for process in started:
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)


def _start(order: dict[str, Any]) -> subprocess.Popen[bytes]:
    with open(order["log"], "ab") as log:
        return subprocess.Popen(
            order["command"],
            env={**os.environ, **order["environment"]},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _kill(leaders: set[int]) -> bool:
    """Kill all processes of these sessions, even stopped ones; whether there were any."""
    members = [pid for pid in members_of(leaders) if not is_gone(pid)]
    for pid in members:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(members)


def members_of(leaders: set[int]) -> list[int]:
    """The processes of these sessions: the children of a worker's pool and RQ's work horses stay in its session."""
    found = []
    for pid in _all_processes():
        with suppress(OSError):
            if os.getsid(pid) in leaders:
                found.append(pid)
    return found


def _all_processes() -> list[int]:
    if os.path.isdir("/proc/self"):
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    done = subprocess.run(["ps", "-axo", "pid="], capture_output=True, text=True, check=True)  # noqa: S607
    return [int(word) for word in done.stdout.split()]


def is_gone(pid: int) -> bool:
    """Whether the process has ended; it may still be a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] in ("Z", "X")
    except FileNotFoundError:
        return os.path.isdir("/proc/self")


if __name__ == "__main__":
    main(sys.argv[1])
