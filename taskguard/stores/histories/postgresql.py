"""The history in PostgreSQL: one table, added to and trimmed by a function of `postgresql.sql`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from taskguard.history import KEPT_FOR, MOST, Line
from taskguard.protocol.store import MICROS, micros

TRIM_EVERY = 16
"""Additions between two trims."""


class PostgresHistory:
    def __init__(self, call: Callable[..., Any], look: Callable[[str, dict[str, Any]], list[Any]], table: str) -> None:
        self._call = call
        self._look = look
        self._table = table
        self._added = count()

    def add(self, lines: Sequence[Line], /, *, last: bool = False) -> None:
        trims = next(self._added) % TRIM_EVERY == 0
        self._call(
            "add_history_1",
            # PostgreSQL cannot store NUL; the text has the original key.
            keys=[line.key.replace("\0", "\ufffd") for line in lines],
            texts=[line.text for line in lines],
            notables=[line.notable for line in lines],
            ages=[micros(line.age) for line in lines],
            keep=MOST if trims else 0,
            keep_for=KEPT_FOR * MICROS,
        )

    def read(self, prefix: str = "", /, *, limit: int = 1000) -> list[Line]:
        one_log = (
            f"(SELECT key, text, notable, at FROM {self._table} WHERE namespace = %(namespace)s AND notable = {{}}"
            " AND left(key, length(%(prefix)s)) = %(prefix)s ORDER BY id DESC LIMIT %(limit)s)"
        )
        query = f"{one_log.format('true')} UNION ALL {one_log.format('false')}"
        rows = self._look(query, {"prefix": prefix, "limit": limit})
        lines = [Line(row.key, row.text, row.notable, at=row.at / MICROS) for row in reversed(rows)]
        return sorted(lines, key=lambda line: line.at)[-limit:]
