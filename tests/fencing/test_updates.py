"""A fence or a version in a column of the user's own table."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from taskguard import ConfigurationError, RowCountError, StaleFenceError, VersionConflictError
from taskguard.fencing import updates
from tests.fencing.databases import (
    CLIENTS,
    ROWS_COUNTED_DIFFERENTLY,
    Client,
    django_client,
    prepare,
    waits_for_a_row,
)
from tests.waiting import wait_until


def fence_of(token: int) -> Any:
    return SimpleNamespace(key="key", token=token)


def account(client: Client, name: str = "one") -> tuple[Any, ...]:
    with client.transaction():
        return client.execute("SELECT cents, fence, version FROM account WHERE id = ?", name)[0]


def take(client: Client, token: int, name: str = "one", cents: int = 5, **options: Any) -> None:
    from taskguard.fencing.updates import fenced_update

    with client.transaction() as tx:
        values = {"name": name, "some": cents, "like": "%"}
        where = "id = :name AND :like = '%'"
        fenced_update(fence_of(token), tx, "account", "cents = cents - :some", where, values, **options)


@pytest.mark.parametrize("make_client", ROWS_COUNTED_DIFFERENTLY, indirect=True)
class TestSQL:
    """With any connection."""

    def test_the_row_keeps_the_token_and_refuses_what_is_lower(self, client: Client):
        take(client, 7)
        take(client, 7)
        with pytest.raises(StaleFenceError) as refused:
            take(client, 6)

        assert (refused.value.resource, refused.value.mark) == ("account", 7)
        assert account(client) == (990, 7, 0)

    def test_an_update_that_changes_nothing_is_no_refusal(self, client: Client):
        """MariaDB counts rows that differ from before, or rows that match: as the driver has asked it to."""
        take(client, 7, cents=0)
        take(client, 7, cents=0)

        assert account(client) == (1000, 7, 0)

    def test_a_version_that_was_read_is_written_once(self, client: Client):
        from taskguard.fencing.updates import versioned_update

        def write(version: int, name: str = "one") -> int:
            with client.transaction() as tx:
                return versioned_update(tx, "account", "cents = 1", "id = :name", {"name": name}, version=version)

        assert write(0) == 1
        with pytest.raises(VersionConflictError) as conflict:
            write(0)
        assert (conflict.value.expected, conflict.value.found) == (0, 1)
        with pytest.raises(RowCountError):
            write(0, "three")
        assert account(client) == (1, 0, 1)


class TestRows:
    def test_a_row_that_is_not_there_is_said_to_be_missing(self, plain: Client):
        with pytest.raises(RowCountError, match="no row matches"):
            take(plain, 7, "three")

    def test_rows_of_which_one_is_ahead_are_refused_together(self, plain: Client):
        from taskguard.fencing.updates import fenced_update

        take(plain, 9, "two")
        with pytest.raises(StaleFenceError), plain.transaction() as tx:
            fenced_update(fence_of(8), tx, "account", "cents = 1", "id IN ('one', 'two')", {}, rows=2)
        assert account(plain) == (1000, 0, 0)
        with pytest.raises(RowCountError, match="matches 2 rows, not 1"), plain.transaction() as tx:
            fenced_update(fence_of(10), tx, "account", "cents = 1", "id IN ('one', 'two')", {})
        with plain.transaction() as tx:
            fenced_update(fence_of(10), tx, "account", "cents = 1", "id IN ('one', 'two')", {}, rows=2)

    def test_several_rows_are_changed_in_a_transaction_or_not_at_all(self, url_of: Any, open_client: Any):
        client = open_client(url_of("postgresql"))
        take(client, 9, "two")
        client.connection.autocommit = True
        with pytest.raises(ConfigurationError, match="commits each statement by itself"):
            updates.fenced_update(fence_of(8), client.handle, "account", "cents = 1", "cents < 2000", {}, rows=2)

        assert account(client) == (1000, 0, 0)


class TestColumnsThatWereNeverSet:
    """Added to a table without a default: NULL is before every token, and is the first version."""

    @pytest.fixture
    def client(self, make_client: Any, client: Client) -> Client:  # named, so that it can be parametrized
        columns = "id VARCHAR(9) PRIMARY KEY, cents BIGINT, fence BIGINT, version BIGINT"
        with client.transaction():
            client.execute(f"CREATE TEMPORARY TABLE account ({columns})")  # in the place of the real one
            client.execute("INSERT INTO account (id, cents) VALUES ('one', 1000)")
        return client

    @pytest.mark.parametrize("make_client", ["psycopg", "pymysql", "sqlite3"], indirect=True)
    def test_by_sql(self, client: Client):
        take(client, 7)
        with client.transaction() as tx:
            assert updates.versioned_update(tx, "account", "cents = cents - 5", "id = 'one'", {}, version=0) == 1

        assert account(client) == (990, 7, 1)

    @pytest.mark.parametrize("make_client", ["core-psycopg2", "core-pymysql"], indirect=True)
    def test_by_sqlalchemy(self, client: Client):
        import sqlalchemy
        from sqlalchemy import column, update

        from taskguard.fencing.sqlalchemy import fenced_update, versioned_update

        table = sqlalchemy.table("account", column("id"), column("cents"), column("fence"), column("version"))
        statement = update(table).where(table.c.id == "one").values(cents=table.c.cents - 5)
        with client.transaction() as tx:
            fenced_update(fence_of(7), tx, statement)
            assert versioned_update(tx, statement, version=0) == 1

        assert account(client) == (990, 7, 1)

    @pytest.mark.parametrize("make_client", ["django-postgresql", "django-mariadb"], indirect=True)
    def test_by_django(self, client: Client):
        from django.db.models import F

        from taskguard.fencing.django import fenced_update, versioned_update
        from tests.fencing.shop.models import Account

        rows = Account.objects.using(client.connection.alias).filter(pk="one")
        fenced_update(fence_of(7), rows, cents=F("cents") - 5)
        assert versioned_update(rows, version=0, cents=F("cents") - 5) == 1

        assert account(client) == (990, 7, 1)


class Between:
    """A database where somebody else does something right after the first statement."""

    def __init__(self, database: Any, act: Any) -> None:
        self._database, self._act = database, act
        self.dialect = database.dialect
        self.require_transaction = database.require_transaction

    def run(self, sql: str, parameters: Any) -> Any:
        outcome = self._database.run(sql, parameters)
        act, self._act = self._act, lambda: None
        act()
        return outcome


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
class TestARowThatComesToBeMeantBetweenTheUpdateAndTheLook:
    @pytest.fixture
    def mine(self, kind: str, url_of: Any, open_client: Any, monkeypatch: pytest.MonkeyPatch) -> Client:
        url = url_of(kind)
        mine, other = open_client(url), open_client(url)
        with mine.transaction():
            mine.execute("UPDATE account SET cents = -1 WHERE id = 'two'")
            if kind == "mariadb":  # at its usual level it keeps rows locked that it looked at in vain
                mine.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")

        def act() -> None:
            with other.transaction():
                other.execute("UPDATE account SET cents = 500 WHERE id = 'two'")

        real = updates.connected
        monkeypatch.setattr(updates, "connected", lambda connection: Between(real(connection), act))
        return mine

    def test_it_is_changed_and_not_only_said_to_be(self, mine: Client):
        with mine.transaction() as tx:
            where = "id = 'two' AND cents > 0"
            updates.fenced_update(fence_of(7), tx, "account", "cents = cents - 5", where, {})

        assert account(mine, "two") == (495, 7, 0)

    def test_by_its_version_too(self, mine: Client):
        with mine.transaction() as tx:
            where = "id = 'two' AND cents > 0"
            assert updates.versioned_update(tx, "account", "cents = cents - 5", where, {}, version=0) == 1

        assert account(mine, "two") == (495, 0, 1)

    def test_the_others_are_not_changed_twice(self, mine: Client):
        with pytest.raises(RowCountError), mine.transaction() as tx:
            updates.fenced_update(fence_of(7), tx, "account", "cents = cents - 5", "cents > 0", {}, rows=2)

        assert account(mine) == (1000, 0, 0)


@pytest.mark.parametrize("how", ["core-psycopg2", "core-pymysql", "session-sqlite", "session-psycopg2"])
class TestSQLAlchemy:
    @pytest.fixture
    def client(self, how: str, url_of: Any, open_client: Any) -> Client:
        kind, connect = CLIENTS[how]
        return open_client(url_of(kind), connect)

    @pytest.fixture
    def model(self) -> Any:
        import sqlalchemy
        from sqlalchemy.orm import declarative_base

        from taskguard.fencing.sqlalchemy import FencedMixin, VersionedMixin

        class Account(FencedMixin, VersionedMixin, declarative_base()):  # type: ignore[misc]
            __tablename__ = "account"
            id = sqlalchemy.Column(sqlalchemy.String(9), primary_key=True)
            cents = sqlalchemy.Column(sqlalchemy.BigInteger)

        return Account

    def test_updates_of_tables_and_of_models(self, client: Client, model: Any):
        from sqlalchemy import update

        from taskguard.fencing.sqlalchemy import fenced_update, versioned_update

        for target, columns, token in ((model, model, 7), (model.__table__, model.__table__.c, 8)):
            statement = update(target).where(columns.id == "one").values(cents=columns.cents - 5)
            with client.transaction() as tx:
                fenced_update(fence_of(token), tx, statement)
            with pytest.raises(StaleFenceError) as refused, client.transaction() as tx:
                fenced_update(fence_of(token - 1), tx, statement)
            assert (refused.value.resource, refused.value.mark) == ("account", token)
            with client.transaction() as tx:
                assert versioned_update(tx, statement, version=token - 7) == token - 6
            with pytest.raises(VersionConflictError), client.transaction() as tx:
                versioned_update(tx, statement, version=token - 7)
        nobody = update(model.__table__).where(model.__table__.c.id == "three").values(cents=1)
        for change in (
            lambda tx: fenced_update(fence_of(9), tx, nobody),
            lambda tx: versioned_update(tx, nobody, version=1),
        ):
            with pytest.raises(RowCountError, match="no row matches"), client.transaction() as tx:
                change(tx)
        assert account(client) == (980, 8, 2)


@pytest.mark.parametrize("kind", ["postgresql", "mariadb", "sqlite"])
def test_django_querysets(kind: str, url_of: Any, open_client: Any):
    client = open_client(url_of(kind), django_client)
    from django.db.models import F

    from taskguard.fencing.django import fenced_update, versioned_update
    from tests.fencing.shop.models import Account

    rows = Account.objects.using(client.connection.alias)
    fenced_update(fence_of(7), rows.filter(pk="one"), cents=F("cents") - 5)
    with pytest.raises(StaleFenceError) as refused, client.transaction():
        fenced_update(fence_of(6), rows.filter(pk="one"), cents=0)
    assert (refused.value.resource, refused.value.mark) == ("shop.Account", 7)
    assert versioned_update(rows.filter(pk="one"), version=0, cents=F("cents") - 5) == 1
    with pytest.raises(VersionConflictError):
        versioned_update(rows.filter(pk="one"), version=0, cents=0)
    for change in (
        lambda: fenced_update(fence_of(7), rows.filter(pk="three"), cents=0),
        lambda: versioned_update(rows.filter(pk="three"), version=0, cents=0),
    ):
        with pytest.raises(RowCountError, match="no row matches"):
            change()
    assert account(client) == (990, 7, 1)


def test_django_querysets_that_a_router_sends_elsewhere(url_of: Any, open_client: Any, tmp_path: Path):
    """What is looked at is what is written: the replica from which others read is behind."""
    prepare(f"sqlite:///{tmp_path / 'replica'}.db")
    replica = open_client(f"sqlite:///{tmp_path / 'replica'}.db", django_client)
    client = open_client(url_of("postgresql"), django_client)
    from django.db import router

    from taskguard.fencing.django import fenced_update, versioned_update
    from tests.fencing.shop.models import Account

    places = SimpleNamespace(
        db_for_read=lambda *_, **__: replica.connection.alias, db_for_write=lambda *_, **__: client.connection.alias
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(router, "routers", [places])
        with client.transaction():
            fenced_update(fence_of(7), Account.objects.all(), rows=2, cents=5)
        with pytest.raises(StaleFenceError):
            fenced_update(fence_of(6), Account.objects.filter(pk="one"), cents=6)
        versioned_update(Account.objects.filter(pk="one"), version=0, cents=7)
        with pytest.raises(VersionConflictError):
            versioned_update(Account.objects.filter(pk="one"), version=0, cents=8)
    assert (account(client), account(replica)) == ((7, 7, 1), (1000, 0, 0))


def test_django_querysets_over_several_tables_are_refused(url_of: Any, open_client: Any):
    """PostgreSQL would look at the token before it waits for the row, and not again."""
    url = url_of("postgresql")
    client, newer = open_client(url, django_client), open_client(url)
    from taskguard.fencing.django import fenced_update, versioned_update
    from tests.fencing.shop.models import Account

    with newer.transaction():
        newer.execute("INSERT INTO booking VALUES ('one', 7)")
    rows = Account.objects.using(client.connection.alias).filter(booking__cents=7)
    refused: list[BaseException] = []

    def write(change: Any) -> None:
        try:
            change()
        except BaseException as error:
            refused.append(error)

    changes = (
        lambda: fenced_update(fence_of(8), rows, cents=0),
        lambda: versioned_update(rows, version=0, cents=0),
    )
    with newer.transaction():
        newer.execute("UPDATE account SET cents = 5, fence = 9, version = 1 WHERE id = 'one'")
        threads = [threading.Thread(target=write, args=(change,)) for change in changes]
        for thread in threads:
            thread.start()
        watcher = open_client(url)
        wait_until(lambda: len(refused) == 2 or waits_for_a_row(watcher), what="both at the row, or refused")
    for thread in threads:
        thread.join(20)

    assert account(newer) == (5, 9, 1)
    assert [type(error) for error in refused] == [ConfigurationError] * 2
    assert "another table is involved" in str(refused[0])
