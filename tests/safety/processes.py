"""The test's side of a worker in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from types import TracebackType
from typing import Any


class RemoteWorker:
    def __init__(self, url: str, namespace: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.safety.worker", url, namespace],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.answer() == "ready"

    def ask(self, *words: Any) -> Any:
        self.tell(*words)
        return self.answer()

    def tell(self, *words: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{json.dumps(words)}\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> RemoteWorker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
