"""The history in Redis: two capped lists, separate from all entries.

They are in one slot, and no verb of a key touches them, so on a cluster they may be on another node than a key's entry.
Lists and not streams: one command appends a whole batch, at a quarter of the server's cost for as many XADD.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final

from taskguard.history import KEPT_FOR, MOST, Line
from taskguard.protocol.store import MICROS, micros
from taskguard.stores.redis_wire import Script, Wire

PAGE = 1000


_ADD: Final = Script("history")


class RedisHistory:
    def __init__(self, wire: Wire, namespace: str) -> None:
        self._wire = wire
        self._logs = [f"{namespace}:history:{{{namespace}}}:{log}" for log in ("ordinary", "notable")]

    def add(self, lines: Sequence[Line], /, *, last: bool = False) -> None:
        ordinary = [f"{micros(line.age)} {line.text}" for line in lines if not line.notable]
        notable = [f"{micros(line.age)} {line.text}" for line in lines if line.notable]
        # Twice, since up to half of the elements are times.
        args = [2 * MOST, KEPT_FOR, len(ordinary), *ordinary, *notable]
        if last:
            self._wire.run_unanswered(_ADD, self._logs, args)
        else:
            self._wire.call(_ADD, self._logs, args, aside=True)

    def read(self, prefix: str = "", /, *, limit: int = 1000) -> list[Line]:
        found = [line for notable in (False, True) for line in self._newest(notable, prefix, limit)]
        return sorted(found, key=lambda line: line.at)[-limit:]

    def _newest(self, notable: bool, prefix: str, limit: int) -> list[Line]:
        """The newest *limit* lines of one log, oldest first."""
        found: list[Line] = []
        came = 0
        for element in self._backwards(notable):
            if element.startswith(b"@"):
                came = int(element[1:])
                continue
            age, _, text = element.decode().partition(" ")
            key = json.loads(text)[1]
            if key.startswith(prefix):
                found.append(Line(key, text, notable, at=(came - int(age)) / MICROS))
            if len(found) == limit:
                break
        return found[::-1]

    def _backwards(self, notable: bool) -> Iterator[bytes]:
        end = -1
        while True:
            # Lines added in the meantime shift the pages: a line may be read twice, and none is missed.
            page = self._wire.execute(b"LRANGE", self._logs[notable], end - PAGE + 1, end)
            yield from reversed(page)
            if len(page) < PAGE:
                return
            end -= PAGE
