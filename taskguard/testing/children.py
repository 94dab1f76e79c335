"""A forked process that runs one delivery of a job, and may kill or stop itself on the way."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

LONGEST_TEXT = 20_000
"""A child's report must fit into the pipe, which nobody reads until the child ends."""


@dataclass(frozen=True, slots=True)
class End:
    """How a child ended: where it killed or stopped itself, how many steps it took, what it raised."""

    at: str = ""
    steps: int = 0
    problem: str = ""


class Child:
    """Runs *work* in a fork. *work* takes a function that signals this process, and returns the step count."""

    def __init__(self, work: Callable[[Callable[[str], None]], int], number: signal.Signals = signal.SIGKILL) -> None:
        self._reader, writer = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads: the guard's own threads survive a fork
            self._pid = os.fork()
        if self._pid == 0:
            os.close(self._reader)
            _run_child(work, writer, number)
        os.close(writer)
        self._is_over = False

    def wait_until_stopped(self) -> bool:
        """Wait; true if the child stopped itself, false if it ended."""
        _, status = os.waitpid(self._pid, os.WUNTRACED)
        self._is_over = not os.WIFSTOPPED(status)
        return not self._is_over

    def is_over_within(self, seconds: float) -> bool:
        give_up = time.monotonic() + seconds
        while not self._is_over and time.monotonic() < give_up:
            self._is_over = os.waitpid(self._pid, os.WNOHANG)[0] == self._pid
            time.sleep(0.005)
        return self._is_over

    def go_on(self) -> None:
        os.kill(self._pid, signal.SIGCONT)

    def end(self) -> End:
        if not self._is_over:
            os.waitpid(self._pid, 0)
            self._is_over = True
        with os.fdopen(self._reader) as pipe:
            facts = [json.loads(line) for line in pipe]
        return End(**{name: value for fact in facts for name, value in fact.items()}) if facts else _SILENT

    def kill(self) -> None:
        """Kill the child: a stopped one would stay for ever."""
        if not self._is_over:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._is_over = True
            os.close(self._reader)


_SILENT = End(problem="its process ended without a report")


def _run_child(work: Callable[[Callable[[str], None]], int], writer: int, number: signal.Signals) -> NoReturn:
    def report(**facts: object) -> None:
        os.write(writer, (json.dumps(facts) + "\n").encode())

    def signal_myself(where: str) -> None:
        report(at=where)
        os.kill(os.getpid(), number)

    try:
        report(steps=work(signal_myself))
    except BaseException:
        sys.settrace(None)
        report(problem=traceback.format_exc()[-LONGEST_TEXT:])
    os._exit(0)
