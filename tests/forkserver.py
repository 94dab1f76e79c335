"""Processes of Python programs that start in a moment: forked from one that has imported what they need.

A worker of Celery spends a second of processor time on its imports, and the tests start hundreds. What comes out is a
process of its own, in a session of its own, with its own environment, that runs `python -m PROGRAM` as ever. A program
that must begin with an interpreter of its own (one that gevent patches before anything is imported, one with a library
preloaded, one whose clock is set before anything has taken it from `time`) is started the ordinary way.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import random
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.servers import children

PRELOADED = (
    "celery.app.base",
    "celery.app.trace",
    "celery.apps.worker",
    "celery.apps.beat",
    "celery.backends.redis",
    "celery.bin.celery",
    "celery.concurrency.prefork",
    "celery.worker.consumer",
    "celery.worker.strategy",
    "kombu.transport.pyamqp",
    "kombu.transport.redis",
    "rq.cli.cli",
    "rq.scheduler",
    "rq.worker_pool",
    "taskguard.celery",
    "taskguard.cli.rq_cron",
    "taskguard.rq",
    "taskguard.rq.worker",
    "taskguard.stores.redis",
)
_OWN_INTERPRETER = ("gevent", "eventlet")
AHEAD = "TASKGUARD_TEST_AHEAD"
"""Seconds that the clock of a process is ahead."""
_OWN_ENVIRONMENT = ("LD_", "PYTHONPATH", "PYTHONHOME", AHEAD)


def start(
    command: Sequence[str], *, log: Path, directory: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes] | ForkedProcess:
    """Start *command*, whose output is added to *log*; its environment is this process's, changed by *environment*."""
    if _needs_an_interpreter_of_its_own(command, environment):
        with log.open("ab") as output:
            return children.spawn(command, log=output, directory=directory, environment=environment, as_nobody=False)
    order = {
        "program": command[2],
        "arguments": list(command[3:]),
        "log": str(log),
        "directory": str(directory),
        "environment": {**os.environ, **environment},
    }
    log.touch()  # it is there from the start, as with any process
    return ForkedProcess(_server(os.getpid()), order)


def _needs_an_interpreter_of_its_own(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    is_module = len(command) > 2 and command[0] == sys.executable and command[1] == "-m"
    return (
        not is_module
        or any(word in _OWN_INTERPRETER for word in command)
        or any(name.startswith(_OWN_ENVIRONMENT) for name in environment)
    )


class ForkedProcess:
    """What the tests use of `subprocess.Popen`, for a process that another one has forked."""

    def __init__(self, server: ForkServer, order: Mapping[str, Any]) -> None:
        self._server = server
        self.args = [order["program"], *order["arguments"]]
        self.pid: int = server.ask({"start": order})
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.ask({"poll": self.pid})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class ForkServer:
    """The test's side of the process that forks them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = children.spawn_with_pipes([sys.executable, "-m", "tests.forkserver"])

    def ask(self, order: Mapping[str, Any]) -> Any:
        with self._lock:
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.write(f"{json.dumps(order)}\n".encode())
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())


@functools.cache
def _server(pid: int) -> ForkServer:
    return ForkServer()


# -- the process that forks ------------------------------------------------------------------------------------------


def main() -> None:
    for name in PRELOADED:
        with suppress(ModuleNotFoundError):  # an environment need not have all of them
            importlib.import_module(name)
    for line in sys.stdin:
        order = json.loads(line)
        if "poll" in order:
            pid, status = os.waitpid(order["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if answer == 0:
                return become(order["start"])
        print(json.dumps(answer), flush=True)
    return None


def become(order: Mapping[str, Any]) -> None:
    """In the forked process: be what was ordered, to the end."""
    os.setsid()
    children.die_with_parent()
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for old, new in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(old, new)
    random.seed()
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["directory"])
    sys.path[0] = order["directory"]
    sys.argv = [order["program"], *order["arguments"]]
    runpy.run_module(order["program"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
