"""`fence.once`: an effect and its record in one transaction."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from taskguard.errors import ConfigurationError
from taskguard.fencing.connections import Connected, connected
from taskguard.fencing.statements import STATEMENTS
from taskguard.fencing.tables import ask, column_text

if TYPE_CHECKING:
    from taskguard.fence import Effects

_COUNTS = 2
"""The LAST_INSERT_ID that the statement sets, on MariaDB and MySQL, if a valid row exists already."""


class Once:
    """Whether this is the first time: true in one transaction that commits, false in all others.

    The first transaction may store a value with `keep`; the others read it as `value`.
    """

    def __init__(self, database: Connected, row: dict[str, Any], is_first: bool) -> None:
        self._database = database
        self._row = row
        self._is_first = is_first

    def __bool__(self) -> bool:
        return self._is_first

    def __repr__(self) -> str:
        return f"Once({self._is_first})"

    def keep(self, value: Any) -> None:
        """Store *value*, as JSON, for later calls."""
        if not self._is_first:
            raise ConfigurationError("only the first call can store a value: write `if done: done.keep(value)`")
        self._database.require_transaction()
        outcome = json.dumps(value, separators=(",", ":"), allow_nan=False)
        self._database.run(STATEMENTS[self._database.dialect].keep, {**self._row, "outcome": outcome})

    @property
    def value(self) -> Any:
        """The value that the first call stored; None if it stored nothing."""
        rows = self._database.run(STATEMENTS[self._database.dialect].outcome, self._row).rows
        return json.loads(rows[0][0]) if rows and rows[0][0] is not None else None


def once(effects: Effects, connection: Any, name: str | None) -> Once:
    database = connected(connection)
    database.require_transaction()
    dialect = database.dialect
    row = {"effect": column_text(effects.key, dialect), "name": column_text(name or "", dialect)}
    parameters = {**row, "owner": column_text(effects.owner, dialect), "keep": int(effects.keep_for) + 1}
    outcome = ask(database, STATEMENTS[dialect].once, parameters)
    is_first = outcome.last_id != _COUNTS if dialect == "mysql" else bool(outcome.rows)
    return Once(database, row, is_first)
