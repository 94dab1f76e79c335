"""The history in Redis: two capped streams, apart from all entries.

They are in one slot, and no verb of a key touches them, so on a cluster they may be on another node than a key's entry.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

from taskguard.history import KEPT_FOR, MOST, Line
from taskguard.rules import MICROS, micros

PAGE = 1000


class Wire(Protocol):
    """What the history needs of its store."""

    def run(self, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Run the script; from the thread that renews."""

    def send(self, keys: Sequence[str], args: Sequence[Any]) -> None:
        """Have the script run, and if the server can be told to be silent wait for no answer."""

    def ask(self, *command: Any) -> Any:
        """One command, and its reply."""


class RedisHistory:
    def __init__(self, wire: Wire, namespace: str) -> None:
        self._wire = wire
        self._logs = [f"{namespace}:history:{{{namespace}}}:{log}" for log in ("ordinary", "notable")]

    def add(self, lines: Sequence[Line], /, *, last: bool = False) -> None:
        args: list[Any] = [MOST, KEPT_FOR]
        for line in lines:
            args += (micros(line.age), int(line.notable), line.text)
        if last:
            self._wire.send(self._logs, args)
        else:
            self._wire.run(self._logs, args)

    def read(self, prefix: str = "", /, *, limit: int = 1000) -> list[Line]:
        found = [line for notable in (False, True) for line in self._newest(notable, prefix, limit)]
        return sorted(found, key=lambda line: line.at)[-limit:]

    def _newest(self, notable: bool, prefix: str, limit: int) -> list[Line]:
        found: list[Line] = []
        before: Any = b"+"
        while len(found) < limit:
            page = self._wire.ask(b"XREVRANGE", self._logs[notable], before, b"-", b"COUNT", PAGE)
            for _, (_, at, _, text) in page:
                key = json.loads(text)[1]
                if key.startswith(prefix):
                    found.append(Line(key, text.decode(), notable, at=int(at) / MICROS))
            if len(page) < PAGE:
                break
            before = b"(" + page[-1][0]
        return found[:limit][::-1]
