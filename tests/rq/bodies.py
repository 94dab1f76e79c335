"""What the bodies of jobs are made of: they write down what they do, and wait until the test lets them go on."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from rq import get_current_job

from tests.celery.ledger import Ledger, append

DIRECTORY = "TASKGUARD_TEST_DIRECTORY"
"""The environment variable that tells a worker where the test's files are."""


def ledger_path(directory: Path) -> Path:
    return directory / "ledger"


def gate_path(directory: Path, name: str) -> Path:
    return directory / f"gate-{name}"


def note(what: str, **facts: Any) -> None:
    """Write down that *what* happened, and in which job and process."""
    job = get_current_job()
    # The monotonic clock is one for all processes of a machine, so that times can be compared.
    line = {"what": what, "job_id": job.id if job else None, "pid": os.getpid(), "at": time.monotonic(), **facts}
    append(ledger_path(_directory()), line)


def noted(what: str, **facts: Any) -> bool:
    """Whether that was written down before, by whichever process."""
    return Ledger(ledger_path(_directory())).count(what, **facts) > 0


@contextmanager
def working(key: str, **facts: Any) -> Iterator[None]:
    """Note the "begin" and the "end" of the work on *key*; "failed" if it raises."""
    facts |= {"key": key, "body": uuid4().hex}
    note("begin", **facts)
    try:
        yield
    except BaseException as error:
        note("failed", error=type(error).__name__, **facts)
        raise
    note("end", **facts)


def wait_at(gate: str, timeout: float = 60.0) -> None:
    """Go on when the test opens *gate*."""
    path = gate_path(_directory(), gate)
    give_up = time.monotonic() + timeout
    while not path.exists():
        if time.monotonic() > give_up:
            raise TimeoutError(f"gate {gate} stayed shut for {timeout} s")
        time.sleep(0.01)


def _directory() -> Path:
    return Path(os.environ[DIRECTORY])
