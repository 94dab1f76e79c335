"""A process that a test tells what to do line by line, and can stop, wake and kill.

Each line of its input is a verb with its arguments as JSON; each line of its output is an answer, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from types import TracebackType
from typing import Any, TypeVar

_T = TypeVar("_T", bound="ToldProcess")


class ToldProcess:
    """The test's side."""

    def __init__(self, module: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

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
        # A signal may find its process at work on another processor, which stops a moment later.
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def wake(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self: _T) -> _T:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


# -- the process's side ----------------------------------------------------------------------------------------------


def say(answer: Any) -> None:
    print(json.dumps(answer), flush=True)


def obey(worker: Any) -> None:
    """Do what the test tells, with the methods of *worker*, until it says no more."""
    while line := sys.stdin.readline():
        verb, *arguments = json.loads(line)
        say(getattr(worker, verb)(*arguments))
