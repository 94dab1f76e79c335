"""What pytest-celery asks of Docker, done with local processes: a container is a process and its children.

Only the calls and arguments that `worker.py` makes are here, each as docker-py has it. Where there is Docker, its own
client can take the place of this one.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

from tests import forkserver
from tests.servers import children
from tests.waiting import wait_until


class LocalDocker:
    def __init__(self) -> None:
        self.containers = _Containers()


class _Containers:
    def run(self, image: str, command: Sequence[str], **options: Any) -> LocalContainer:
        return LocalContainer(command, options["environment"], Path(options["working_dir"]))


class LocalContainer:
    """A process in a session of its own, which ends with this one, and the file with all it ever printed."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], working_dir: Path) -> None:
        self.id = uuid4().hex
        self.name = f"local-{self.id[:12]}"
        self._directory = Path(tempfile.mkdtemp(prefix="taskguard-container-"))
        self._command = [sys.executable if word == "python" else word for word in command]
        self._environment = environment
        self._working_dir = working_dir
        self.start()

    def start(self) -> None:
        self._process = forkserver.start(
            self._command, log=self._log, directory=self._working_dir, environment=self._environment
        )
        self.reload()

    def reload(self) -> None:
        """Docker's clients know a container as it was when they last asked."""
        self.status = "running" if self._process.poll() is None else "exited"
        self.attrs = {
            "State": {"Pid": self._process.pid, "ExitCode": self._process.returncode},
            "Config": {"Env": [f"{name}={value}" for name, value in self._environment.items()]},
            "NetworkSettings": {"Networks": {}, "Ports": {}},
            "HostConfig": {"PortBindings": {}},
        }

    def logs(self) -> bytes:
        return self._log.read_bytes()

    def top(self, ps_args: str = "") -> dict[str, list[Any]]:
        rows = [[str(process.pid), str(process.ppid())] for process in self._all()]
        return {"Titles": ["PID", "PPID"], "Processes": rows}

    def pause(self) -> None:
        children.freeze(self._process)
        # A signal may find its process at work on another processor, which stops a moment later.
        wait_until(lambda: all(process.status() == psutil.STATUS_STOPPED for process in self._all()))

    def unpause(self) -> None:
        children.thaw(self._process)

    def kill(self, signal_name: str | int | None = None) -> None:
        number = _number(signal_name)
        if number == signal.SIGKILL:
            self._end_all()
        else:
            self._process.send_signal(number)

    def wait(self, timeout: float | None = None) -> dict[str, int]:
        return {"StatusCode": self._process.wait(timeout)}

    def stop(self, timeout: float = 10) -> None:
        children.thaw(self._process)
        self.kill("SIGTERM")
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()

    def restart(self, timeout: float = 10) -> None:
        self.stop(timeout)
        self.start()

    def remove(self, force: bool = False) -> None:
        self.kill()
        shutil.rmtree(self._directory)

    def _end_all(self) -> None:
        everyone = self._all()
        # The group, since children may have outlived the process that Docker would take them down with.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        wait_until(lambda: not any(map(_lives, everyone)), what=f"the end of {everyone}")

    def _all(self) -> list[psutil.Process]:
        try:
            process = psutil.Process(self._process.pid)
            return [process, *process.children()]
        except psutil.NoSuchProcess:
            return []

    @property
    def _log(self) -> Path:
        return self._directory / "log"


def _number(name: str | int | None) -> signal.Signals:
    if name is None:
        return signal.SIGKILL
    return signal.Signals[name] if isinstance(name, str) else signal.Signals(name)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
