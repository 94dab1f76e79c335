"""`fence.once`: an effect and the memory of it, in one transaction."""

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
"""What MariaDB and MySQL are told to say of a row that is there and counts."""


class Once:
    """Whether this is the first time: true for one transaction that commits, false for all others.

    What the first one keeps, in the same transaction, the others find as `value`.
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
        """Keep *value*, as JSON, for those who come later."""
        if not self._is_first:
            raise ConfigurationError("only the first time can keep a value: write `if done: done.keep(value)`")
        self._database.require_transaction()
        outcome = json.dumps(value, separators=(",", ":"), allow_nan=False)
        self._database.run(STATEMENTS[self._database.dialect].keep, {**self._row, "outcome": outcome})

    @property
    def value(self) -> Any:
        """What the first time has kept; None if it has kept nothing."""
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
