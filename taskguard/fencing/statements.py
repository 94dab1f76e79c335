"""The statements on the two tables, for each database. Each operation is one statement."""

from __future__ import annotations

from typing import NamedTuple

from taskguard.fencing.connections import Dialect


class Statements(NamedTuple):
    tables: tuple[str, ...]
    drop: tuple[str, ...]
    mark: str
    """Raise the high-water mark of a resource if the token is higher, lock the row, and return the mark."""
    once: str
    """Write the row of an effect unless a valid one exists; return whether it was written."""
    outcome: str
    """Read the value that the first call stored."""
    keep: str
    old_marks: str
    drop_mark: str
    old_effects: str
    drop_effect: str


# Not now(), the start of the transaction: the row of a long transaction could expire as soon as it commits.
_PG_NOW = "CAST(extract(epoch FROM clock_timestamp()) AS bigint)"
_SQLITE_NOW = "CAST(strftime('%s', 'now') AS INTEGER)"
_MYSQL_NOW = "UNIX_TIMESTAMP()"
_DROP = ("DROP TABLE IF EXISTS taskguard_fence", "DROP TABLE IF EXISTS taskguard_once")
_EFFECT = "effect = :effect AND name = :name"


def _mark(now: str, greatest: str) -> str:
    # The statement writes the row, and so locks it until the transaction ends, even if the token is stale: nobody can
    # raise the mark between this read and the caller's writes.
    return (
        f"INSERT INTO taskguard_fence (resource, token, seen_at) VALUES (:resource, :token, {now}) "
        f"ON CONFLICT (resource) DO UPDATE SET token = {greatest}(taskguard_fence.token, excluded.token), "
        "seen_at = excluded.seen_at RETURNING token"
    )


def _once(now: str) -> str:
    return (
        "INSERT INTO taskguard_once (effect, name, owner, made_at, kept_until) "
        f"VALUES (:effect, :name, :owner, {now}, {now} + :keep) "
        "ON CONFLICT (effect, name) DO UPDATE SET owner = excluded.owner, made_at = excluded.made_at, "
        "kept_until = excluded.kept_until, outcome = NULL "
        "WHERE taskguard_once.kept_until < excluded.made_at AND taskguard_once.owner <> excluded.owner "
        "RETURNING made_at"
    )


def _others(now: str, locking: str) -> dict[str, str]:
    old_effect = f"made_at < {now} - :age AND kept_until < {now}"
    return {
        "outcome": f"SELECT outcome FROM taskguard_once WHERE {_EFFECT}{locking}",
        "keep": f"UPDATE taskguard_once SET outcome = :outcome WHERE {_EFFECT}",
        "old_marks": f"SELECT resource FROM taskguard_fence WHERE seen_at < {now} - :age LIMIT :most",
        "drop_mark": f"DELETE FROM taskguard_fence WHERE resource = :resource AND seen_at < {now} - :age",
        "old_effects": f"SELECT effect, name FROM taskguard_once WHERE {old_effect} LIMIT :most",
        "drop_effect": f"DELETE FROM taskguard_once WHERE {_EFFECT} AND {old_effect}",
    }


STATEMENTS: dict[Dialect, Statements] = {
    "postgresql": Statements(
        tables=(
            # Free space in each page: PostgreSQL updates a mark within its page and touches no index.
            "CREATE TABLE IF NOT EXISTS taskguard_fence (resource text PRIMARY KEY, token bigint NOT NULL, "
            "seen_at bigint NOT NULL) WITH (fillfactor = 70)",
            "CREATE TABLE IF NOT EXISTS taskguard_once (effect text NOT NULL, name text NOT NULL, "
            "owner text NOT NULL, made_at bigint NOT NULL, kept_until bigint NOT NULL, outcome text, "
            "PRIMARY KEY (effect, name))",
        ),
        drop=_DROP,
        mark=_mark(_PG_NOW, "GREATEST"),
        once=_once(_PG_NOW),
        **_others(_PG_NOW, ""),
    ),
    "sqlite": Statements(
        tables=(
            "CREATE TABLE IF NOT EXISTS taskguard_fence (resource TEXT NOT NULL PRIMARY KEY, token INTEGER NOT NULL, "
            "seen_at INTEGER NOT NULL) WITHOUT ROWID",
            "CREATE TABLE IF NOT EXISTS taskguard_once (effect TEXT NOT NULL, name TEXT NOT NULL, "
            "owner TEXT NOT NULL, made_at INTEGER NOT NULL, kept_until INTEGER NOT NULL, outcome TEXT, "
            "PRIMARY KEY (effect, name)) WITHOUT ROWID",
        ),
        drop=_DROP,
        mark=_mark(_SQLITE_NOW, "max"),
        once=_once(_SQLITE_NOW),
        **_others(_SQLITE_NOW, ""),
    ),
    "mysql": Statements(
        tables=(
            # Bytes: the usual collations treat "a", "A" and "a " as equal. InnoDB: it has transactions.
            "CREATE TABLE IF NOT EXISTS taskguard_fence (resource VARBINARY(255) PRIMARY KEY, token BIGINT NOT NULL, "
            "seen_at BIGINT NOT NULL) ENGINE=InnoDB",
            "CREATE TABLE IF NOT EXISTS taskguard_once (effect VARBINARY(255) NOT NULL, name VARBINARY(255) NOT NULL, "
            "owner VARBINARY(255) NOT NULL, made_at BIGINT NOT NULL, kept_until BIGINT NOT NULL, "
            "outcome LONGTEXT CHARACTER SET utf8mb4, PRIMARY KEY (effect, name)) ENGINE=InnoDB",
        ),
        drop=_DROP,
        # The number of rows that an upsert "affected" depends on a flag of the connection, which drivers and toolkits
        # set differently. The last insert id does not: it is the argument of LAST_INSERT_ID, or 0 for a new row.
        mark=(
            f"INSERT INTO taskguard_fence (resource, token, seen_at) VALUES (:resource, :token, {_MYSQL_NOW}) "
            "ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(GREATEST(token, :token)), "
            f"seen_at = {_MYSQL_NOW}"
        ),
        # The server sets columns from left to right, and each expression sees the new values of those before it. The
        # last insert id is 1 for an expired row, 2 for a valid one.
        once=(
            "INSERT INTO taskguard_once (effect, name, owner, made_at, kept_until) "
            f"VALUES (:effect, :name, :owner, {_MYSQL_NOW}, {_MYSQL_NOW} + :keep) ON DUPLICATE KEY UPDATE "
            f"outcome = IF(kept_until < {_MYSQL_NOW} AND owner <> :owner, NULL, outcome), "
            f"made_at = IF(LAST_INSERT_ID(IF(kept_until < {_MYSQL_NOW} AND owner <> :owner, 1, 2)) = 1, "
            f"{_MYSQL_NOW}, made_at), "
            f"owner = IF(kept_until < {_MYSQL_NOW}, :owner, owner), "
            f"kept_until = IF(kept_until < {_MYSQL_NOW}, {_MYSQL_NOW} + :keep, kept_until)"
        ),
        # A plain read would use the snapshot of the transaction's first read, which may lack the row.
        **_others(_MYSQL_NOW, " LOCK IN SHARE MODE"),
    ),
}
