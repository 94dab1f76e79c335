"""A fence or a version in a column of the user's own table."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from taskguard import RowCountError, StaleFenceError, VersionConflictError
from tests.fencing.databases import ROWS_COUNTED_DIFFERENTLY, Client


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
        with pytest.raises(RowCountError, match="no such row"):
            take(plain, 7, "three")

    def test_rows_of_which_one_is_ahead_are_refused_together(self, plain: Client):
        from taskguard.fencing.updates import fenced_update

        take(plain, 9, "two")
        with pytest.raises(StaleFenceError), plain.transaction() as tx:
            fenced_update(fence_of(8), tx, "account", "cents = 1", "id IN ('one', 'two')", {}, rows=2)
        assert account(plain) == (1000, 0, 0)
        with pytest.raises(RowCountError, match="2 rows, not for 1"), plain.transaction() as tx:
            fenced_update(fence_of(10), tx, "account", "cents = 1", "id IN ('one', 'two')", {})
        with plain.transaction() as tx:
            fenced_update(fence_of(10), tx, "account", "cents = 1", "id IN ('one', 'two')", {}, rows=2)


@pytest.mark.parametrize("how", ["core-psycopg2", "core-pymysql", "session-sqlite", "session-psycopg2"])
class TestSQLAlchemy:
    @pytest.fixture
    def client(self, how: str, url_of: Any, open_client: Any) -> Client:
        from tests.fencing.databases import CLIENTS

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
            with pytest.raises(RowCountError, match="no such row"), client.transaction() as tx:
                change(tx)
        assert account(client) == (980, 8, 2)


@pytest.mark.parametrize("kind", ["postgresql", "mariadb", "sqlite"])
def test_django_querysets(kind: str, url_of: Any, open_client: Any):
    from tests.fencing.databases import django_client

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
        with pytest.raises(RowCountError, match="no such row"):
            change()
    assert account(client) == (990, 7, 1)
