"""Jobs at work, as a test speaks of them: call one, look at its entry, wait for what it did."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.bodies import Gate, ledger_of
from tests.waiting import wait_until


class Scene(ABC):
    """What is the same whichever queue runs the jobs. A job is named as the queue's own methods name it."""

    def __init__(self, directory: Path) -> None:
        self.ledger = ledger_of(directory)
        self.gate = Gate(directory)
        self.key = uuid4().hex[:12]
        """A new one for each test, so that tests can share workers."""

    @abstractmethod
    def call(self, *name: str, **options: Any) -> Any:
        """Call a job of this test's key."""

    @abstractmethod
    def entry(self, *name: str, **where: str) -> Any:
        """What the store knows of the key."""

    @abstractmethod
    def result(self, call: Any) -> Any:
        """What the job returned, once it has."""

    def state(self, *name: str, **where: str) -> str | None:
        """free, queued, running or done; None if nothing is known of the key."""
        entry = self.entry(*name, **where)
        if entry is None:
            return None
        over = entry.state in ("queued", "running") and entry.remaining <= 0
        return "free" if over else str(entry.state)

    def wait_for_state(self, *states: str, within: float = 20.0, **where: str) -> None:
        wait_until(lambda: self.state(**where) in states, timeout=within, what=f"{states}, not {self.entry(**where)}")

    def begun(self, n: int = 1, *, key: str = "", **facts: Any) -> Any:
        """The first lines of the bodies of this test's key, once there are *n*."""
        return self.ledger.wait_for("begin", n, key=key or self.key, **facts)

    def ended(self, n: int = 1, **facts: Any) -> Any:
        return self.ledger.wait_for("end", n, key=self.key, **facts)

    @property
    def runs(self) -> int:
        return self.ledger.count("begin", key=self.key)

    @property
    def overlaps(self) -> Any:
        return self.ledger.overlaps(self.key)

    def next_call_runs(self, *name: str) -> None:
        """The key is usable: the next call of it is no duplicate, and runs."""
        before = self.runs
        call = self.call(*name, value="next")
        assert not call.taskguard.duplicate
        self.begun(before + 1)
        assert self.result(call) == "next"
