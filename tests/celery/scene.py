"""A fleet at work, as a test speaks of it: call a job, look at its entry, wait for what it did."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from tests.celery.bodies import ledger_path
from tests.celery.fleet import Fleet
from tests.celery.gate import Gate
from tests.celery.ledger import Ledger
from tests.waiting import wait_until


class Scene:
    def __init__(self, fleet: Fleet, directory: Any) -> None:
        self.fleet = fleet
        self.ledger = Ledger(ledger_path(directory))
        self.gate = Gate(directory)
        self.key = uuid4().hex[:12]
        """A new one for each test, so that tests can share a fleet."""

    def job(self, name: str) -> Any:
        return self.fleet.tasks.jobs[name]

    def call(self, name: str = "job", then: str = "return", *, key: str = "", **options: Any) -> Any:
        """Call a job of this test's key. Options that the body does not know are those of `apply_async`."""
        arguments = {word: options.pop(word) for word in ("gate", "value") if word in options}
        return self.job(name).apply_async((key or self.key, then), arguments, **options)

    def entry(self, name: str = "job", *, key: str = "") -> Any:
        return self.job(name).taskguard.get(key or self.key)

    def state(self, name: str = "job", *, key: str = "") -> str | None:
        """free, queued, running or done; None if nothing is known of the key."""
        entry = self.entry(name, key=key)
        if entry is None:
            return None
        over = entry.state in ("queued", "running") and entry.remaining <= 0
        return "free" if over else str(entry.state)

    def wait_for_state(self, *states: str, name: str = "job", within: float = 20.0) -> None:
        wait_until(lambda: self.state(name) in states, timeout=within, what=f"{states}, not {self.entry(name)}")

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

    def next_call_runs(self, name: str = "job") -> None:
        """The key is usable: the next call of it is no duplicate, and runs."""
        before = self.runs
        result = self.call(name, value="next")
        assert not result.taskguard.duplicate
        self.begun(before + 1)
        assert result.get(timeout=20) == "next"
