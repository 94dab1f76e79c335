"""The history of a process: two deques."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from taskguard.history import MOST, Line


class MemoryHistory:
    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._logs: tuple[deque[Line], deque[Line]] = (deque(maxlen=MOST), deque(maxlen=MOST))

    def add(self, lines: Sequence[Line], /, *, last: bool = False) -> None:
        now = self._clock() / 1e6
        for line in lines:
            self._logs[line.notable].append(line._replace(at=now - line.age, age=0.0))

    def read(self, prefix: str = "", /, *, limit: int = 1000) -> list[Line]:
        found = [line for log in self._logs for line in log.copy() if line.key.startswith(prefix)]
        return sorted(found, key=lambda line: line.at)[-limit:]
