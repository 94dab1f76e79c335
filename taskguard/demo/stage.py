"""What the demo runs on: a folder, an embedded server, and workers in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import redis

from taskguard.demo import scene
from taskguard.demo.keeper import is_gone, members_of
from taskguard.demo.pace import Pace
from taskguard.demo.server import command_for, find_server, free_port

T = TypeVar("T")

WITHIN = 60.0
"""Seconds that the demo waits for each event before it gives up."""


class Child:
    """One worker, beat or server, with all the processes that it started."""

    def __init__(self, name: str, pid: int, log: Path) -> None:
        self.name = name
        self.pid = pid
        self._log = log

    def is_ready(self) -> bool:
        if is_gone(self.pid):
            raise ChildProcessError(f"{self.name} did not start\n{self.log()}")
        return any(words in self.log() for words in (" ready.", "Listening on", "beat: Starting"))

    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def stop(self) -> None:
        self._send(signal.SIGSTOP)

    def wake(self) -> None:
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        # The parent first: else it sees its children die and starts others.
        for pid in sorted(members_of({self.pid}), key=lambda pid: pid != self.pid):
            with suppress(ProcessLookupError):  # it ended in the meantime
                os.kill(pid, number)


class Stage:
    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self._server = find_server()
        scene.leave_the_user_alone()
        self.folder = Path(tempfile.mkdtemp(prefix="taskguard-demo-"))
        self._keeper = subprocess.Popen(
            [sys.executable, "-m", "taskguard.demo.keeper", str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.children: dict[str, Child] = {}
        self.waits_for = ""
        """What the demo waits for now; the terminal shows it."""

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait()

    def set_up(self) -> str:
        """Start the server, and set the environment of this process and its children; the server's name and version."""
        port = free_port()
        url = f"redis://127.0.0.1:{port}"
        os.environ.update(scene.environment(self.folder, url, self.pace))
        self.start("server", command_for(self._server, port, self.folder))
        client = redis.Redis.from_url(url)
        self.wait_until(lambda: _answers(client), "the embedded server")
        about = client.info("server")
        client.close()
        self.ledger = scene.ledger_in(self.folder)
        self.ledger.create()
        name = about.get("server_name", "redis")
        return f"{name.capitalize()} {about.get(f'{name}_version', about['redis_version'])}"

    # -- children ----------------------------------------------------------------------------------------------------

    def start(self, name: str, command: Sequence[str]) -> Child:
        assert self._keeper.stdin is not None and self._keeper.stdout is not None
        log = self.folder / f"{name}-{len(self.children)}.log"
        inherited = {key: value for key, value in os.environ.items() if key.startswith("TASKGUARD_DEMO_")}
        # In this folder, so that its temporary files go with the folder.
        environment = {**inherited, **scene.named(name), "TMPDIR": str(self.folder)}
        order = {"command": list(command), "log": str(log), "environment": environment}
        self._keeper.stdin.write(json.dumps(order) + "\n")
        self._keeper.stdin.flush()
        self.children[name] = Child(name, int(self._keeper.stdout.readline()), log)
        return self.children[name]

    def start_celery_worker(self, name: str, queues: str) -> Child:
        options = ["-n", f"{name}@demo", "-Q", queues, "-c", "2", "-l", "INFO"]
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]  # starts sooner
        return self.start(name, [*_CELERY, "worker", *options, *quiet])

    def start_rq_worker(self, name: str, queue: str) -> Child:
        options = ["-u", scene.url(), "--worker-class", "taskguard.rq.GuardedWorker"]
        return self.start(name, [sys.executable, "-m", "rq.cli", "worker", *options, queue])

    def start_beat(self, name: str) -> Child:
        files = ["-s", str(self.folder / name), "--pidfile", ""]
        return self.start(name, [*_CELERY, "beat", "-S", "taskguard", "-l", "INFO", *files])

    # -- waiting -----------------------------------------------------------------------------------------------------

    def wait_until(self, condition: Callable[[], T], what: str) -> T:
        """The first true value of *condition*."""
        give_up = time.monotonic() + WITHIN
        self.waits_for = what
        while not (value := condition()):
            if time.monotonic() > give_up:
                raise TimeoutError(f"waited {WITHIN:g} s for {what}\n{self._logs()}")
            time.sleep(0.05)
        self.waits_for = ""
        return value

    def wait_until_ready(self, *names: str) -> None:
        for name in names:
            self.wait_until(self.children[name].is_ready, f"{name} to be ready")

    def breathe(self) -> None:
        """Pause for the reader."""
        time.sleep(self.pace.breath)

    def _logs(self) -> str:
        return "\n".join(f"--- {child.name}\n{child.log()[-1500:]}" for child in self.children.values())


_CELERY = [sys.executable, "-m", "celery", "-A", "taskguard.demo.app"]


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False
