"""What task bodies did, in the order in which they did it: one line of JSON per event in a file that all append to."""

from __future__ import annotations

import itertools
import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any, TypeAlias

import psutil

from tests.waiting import wait_until

Line: TypeAlias = "dict[str, Any]"


def append(path: Path, line: Line) -> None:
    """One write to a file opened for appending: lines of several processes never mix."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


class Ledger:
    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self, what: str | None = None, **facts: Any) -> list[Line]:
        """The events that are *what* and have all of *facts*."""
        wanted = facts if what is None else {"what": what, **facts}
        text = self.path.read_text() if self.path.exists() else ""
        lines = map(json.loads, text.splitlines())
        return [line for line in lines if wanted.items() <= line.items()]

    def count(self, what: str, **facts: Any) -> int:
        return len(self.lines(what, **facts))

    def wait_for(self, what: str, n: int = 1, *, timeout: float = 20.0, **facts: Any) -> list[Line]:
        """At least *n* such events."""

        def enough() -> list[Line]:
            found = self.lines(what, **facts)
            return found if len(found) >= n else []

        return wait_until(enough, timeout=timeout, what=f"{n} x {what} {facts} in {self.lines()}")

    def overlaps(self, key: str) -> list[tuple[Line, Line]]:
        """The first lines of each two bodies for *key* that were at work at the same time.

        A body whose process is gone was at work until its last line.
        """
        bodies: dict[str, list[Line]] = defaultdict(list)
        for line in self.lines(key=key):
            bodies[line["body"]].append(line)
        return [
            (one[0], other[0])
            for one, other in itertools.combinations(bodies.values(), 2)
            if one[0]["at"] < _end(other) and other[0]["at"] < _end(one)
        ]


def _end(body: list[Line]) -> float:
    last = body[-1]
    over = last["what"] in ("end", "failed") or not lives(last["pid"])
    return float(last["at"]) if over else float("inf")


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
