"""What bodies of tasks and jobs are made of: they write down what they do, and wait until the test lets them go on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.ledger import Ledger, append

DIRECTORY = "TASKGUARD_TEST_DIRECTORY"
"""The environment variable that tells a worker where the test's files are."""


def ledger_of(directory: Path) -> Ledger:
    return Ledger(directory / "ledger")


class Gate:
    """All gates of a test, by name; each is shut until it is opened."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self, name: str = "gate") -> None:
        self._path(name).touch()

    def shut(self, name: str = "gate") -> None:
        self._path(name).unlink(missing_ok=True)

    def is_open(self, name: str) -> bool:
        return self._path(name).exists()

    def _path(self, name: str) -> Path:
        return self._directory / f"gate-{name}"


def wait_at(gate: str, timeout: float = 60.0) -> None:
    """Go on when the test opens *gate*."""
    gates = Gate(_directory())
    give_up = time.monotonic() + timeout
    while not gates.is_open(gate):
        if time.monotonic() > give_up:
            raise TimeoutError(f"gate {gate} stayed shut for {timeout} s")
        time.sleep(0.01)


class Notes:
    """What the bodies of one queue write down; *whose* says which of its jobs this process is at."""

    def __init__(self, whose: Callable[[], dict[str, Any]]) -> None:
        self._whose = whose

    def note(self, what: str, **facts: Any) -> None:
        """Write down that *what* happened, and in which job and process."""
        # The monotonic clock is one for all processes of a machine, so that times can be compared.
        line = {"what": what, **self._whose(), "pid": os.getpid(), "at": time.monotonic(), **facts}
        append(ledger_of(_directory()).path, line)

    def noted(self, what: str, **facts: Any) -> bool:
        """Whether that was written down before, by whichever process."""
        return ledger_of(_directory()).count(what, **facts) > 0

    @contextmanager
    def working(self, key: str, **facts: Any) -> Iterator[None]:
        """Note the "begin" and the "end" of the work on *key*; "failed" if it raises."""
        facts |= {"key": key, "body": uuid4().hex}
        self.note("begin", **facts)
        try:
            yield
        except BaseException as error:
            self.note("failed", error=type(error).__name__, **facts)
            raise
        self.note("end", **facts)


def _directory() -> Path:
    return Path(os.environ[DIRECTORY])
