"""One Celery worker: pytest-celery's node, and what these tests do to it besides."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

from celery import Celery
from pytest_celery import CeleryTestWorker, CeleryWorkerContainer

from tests.waiting import wait_until

READY = " ready."


class Worker(CeleryTestWorker):
    """A worker process with its pool. What it is sent by signal, it gets as an operator would send it."""

    def __init__(self, container: Any, app: Celery, name: str, queue: str) -> None:
        super().__init__(CeleryWorkerContainer(container), app)
        self._raw = container
        self._name = name
        self._queue = queue
        self._celery_app = app

    @property
    def worker_name(self) -> str:
        return self._name

    @property
    def worker_queue(self) -> str:
        return self._queue

    def hostname(self) -> str:
        return self._name

    @property
    def pid(self) -> int:
        """The parent's, which survives its end."""
        return int(self._raw.attrs["State"]["Pid"])

    @property
    def running(self) -> bool:
        self._raw.reload()
        return bool(self._raw.status == "running")

    def children(self) -> list[int]:
        """The processes of a prefork pool, oldest first."""
        rows = self._raw.top(ps_args="-o pid,ppid")["Processes"]
        return sorted(int(pid) for pid, parent in rows if int(parent) == self.pid)

    def log(self) -> str:
        return self.logs()

    def wait_for_log(self, log: str, message: str = "", timeout: float = 20.0) -> None:
        # pytest-celery looks once a second, and waits in vain for a worker that is gone.
        def seen() -> bool:
            over = not self.running
            found = log in self.logs()
            assert found or not over, f"{self._name} ended without {log!r}\n{self.logs()[-3000:]}"
            return found

        wait_until(seen, timeout=timeout, what=message or f"{log!r} from {self._name}")

    def wait_until_ready(self) -> None:
        self.wait_for_log(READY)

    def stop(self, timeout: float = 20.0) -> None:
        """A warm shutdown: what was begun is ended first."""
        self.kill("SIGTERM")
        self.wait_until_gone(timeout)

    def quit(self, timeout: float = 20.0) -> None:
        """A cold shutdown, in the middle of a body.

        Celery cancels those that its parent process has heard of, and waits for the end of one that has just begun.
        """
        wait_until(self._has_active, what=f"{self._name} to know of what it runs")
        self.kill("SIGQUIT")
        self.wait_until_gone(timeout)

    def _has_active(self) -> bool:
        answers = self._celery_app.control.inspect([self._name], timeout=1).active() or {}
        return any(answers.values())

    def wait_until_gone(self, timeout: float = 20.0) -> None:
        try:
            self._raw.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self._name} goes on after {timeout} s\n{self.logs()[-3000:]}") from None

    def kill_child(self, pid: int | None = None) -> int:
        """SIGKILL for one process of the pool, the oldest unless told; its pid."""
        victim = self.children()[0] if pid is None else pid
        os.kill(victim, signal.SIGKILL)
        return victim

    def pause(self) -> None:
        """SIGSTOP for the parent and its children, as if the machine slept."""
        self._raw.pause()

    def resume(self) -> None:
        self._raw.unpause()

    def teardown(self) -> None:
        super().teardown()
        self._raw.remove(force=True)
