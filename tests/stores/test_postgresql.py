from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from uuid import uuid4

import psycopg
import pytest

from taskguard.errors import ConfigurationError, StoreError, StoreUnavailableError
from taskguard.protocol.store import Ending, Held, Lease, Store
from taskguard.stores import open_store
from taskguard.testing import StoreContract
from taskguard.testing.contract import LONG, ask, claimed, succeeded
from tests.children import in_fork
from tests.servers import PgBouncer, PostgresServer, require
from tests.waiting import wait_until


class PostgresContract(StoreContract):
    @pytest.fixture
    def url(self, postgres_server: PostgresServer) -> str:
        return postgres_server.url

    @pytest.fixture
    def opener(self, url: str):
        return partial(open_store, url, namespace=uuid4().hex)

    @pytest.fixture
    def store(self, opener: Callable[[], Store]):
        with closing(opener()) as store:
            yield store

    @pytest.fixture
    def elapse(self):
        return lambda seconds: time.sleep(seconds + 0.001)  # the server owns the clock

    @pytest.fixture
    def wipe(self, postgres_server: PostgresServer):
        def wipe() -> None:
            with psycopg.connect(postgres_server.url) as connection:
                connection.execute("DROP SCHEMA taskguard CASCADE")

        return wipe

    @pytest.fixture
    def restart(self, postgres_server: PostgresServer):
        return lambda: (postgres_server.kill(), postgres_server.start())


class TestPostgres(PostgresContract):
    pass


class TestPgBouncer(PostgresContract):
    """Transaction pooling: two verbs of one store need not meet the same session."""

    walks = 2

    @pytest.fixture
    def url(self, pgbouncer: PgBouncer) -> str:
        return pgbouncer.url

    @pytest.fixture
    def restart(self, pgbouncer: PgBouncer):
        return pgbouncer.restart


@pytest.fixture
def namespace() -> str:
    return uuid4().hex


@pytest.fixture
def store(postgres_server: PostgresServer, namespace: str) -> Iterator[Store]:
    with closing(open_store(postgres_server.url, namespace=namespace)) as store:
        yield store


@pytest.fixture
def admin(postgres_server: PostgresServer) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        yield connection


def test_a_store_opened_before_a_fork_works_in_the_child(store: Store):
    lease = claimed(store, "parent")
    assert store.renew([(lease, LONG)]) == [True]

    assert in_fork(lambda: store.renew([(lease, LONG)])) == [True]
    assert in_fork(lambda: isinstance(store.claim(ask("child")), Held))
    assert isinstance(store.claim(ask("parent", "other")), Lease)


def test_what_is_over_is_removed_from_the_tables(store: Store, namespace: str, admin: psycopg.Connection):
    for number in range(100):
        lease = claimed(store, "alice", f"old {number}", lease=0.01, keep_for=0.01)
        store.complete(lease, succeeded(keep_for=0.01))
    time.sleep(0.05)
    for number in range(130):
        claimed(store, "alice", f"new {number}")

    old = "namespace = %s AND key LIKE 'old %%'"
    assert admin.execute(f"SELECT count(*) FROM taskguard.entry WHERE {old}", [namespace]).fetchone() == (0,)
    assert admin.execute(f"SELECT count(*) FROM taskguard.receipt WHERE {old}", [namespace]).fetchone() == (0,)


def test_a_claim_that_waited_for_a_complete_sees_its_receipt(
    store: Store, namespace: str, postgres_server: PostgresServer, admin: psycopg.Connection
):
    # The claim comes while the row is locked, and must not answer from what it saw before it waited.
    lease = claimed(store, "job")
    from concurrent.futures import ThreadPoolExecutor

    with psycopg.connect(postgres_server.url) as blocker, ThreadPoolExecutor(2) as pool:
        blocker.execute("SELECT 1 FROM taskguard.entry WHERE namespace = %s FOR UPDATE", [namespace])
        completing = pool.submit(store.complete, lease, succeeded())
        wait_until(lambda: _that_wait_for(blocker, admin) == 1)  # behind the blocker, and first in its queue
        claiming = pool.submit(store.claim, ask("job"))
        wait_until(lambda: _that_wait_for(blocker, admin) == 2)
        blocker.commit()

        assert completing.result(10)
        assert not isinstance(claiming.result(10), Lease)


def _that_wait_for(blocker: psycopg.Connection, admin: psycopg.Connection) -> int:
    """How many sessions wait for a lock of *blocker*, or behind one that does."""
    [[waiting]] = admin.execute(
        "WITH RECURSIVE behind (pid) AS ("
        " SELECT %s::int UNION SELECT activity.pid FROM behind, pg_stat_activity AS activity"
        " WHERE behind.pid = ANY (pg_blocking_pids(activity.pid)))"
        " SELECT count(*) - 1 FROM behind",
        [blocker.info.backend_pid],
    ).fetchall()
    return int(waiting)


@pytest.mark.parametrize("level", ["serializable", "repeatable read"])
def test_the_isolation_that_a_database_has_by_default_does_not_matter(
    level: str, admin: psycopg.Connection, postgres_server: PostgresServer
):
    admin.execute(f"ALTER DATABASE taskguard SET default_transaction_isolation = '{level}'")
    try:
        with closing(open_store(postgres_server.url, namespace=uuid4().hex)) as store:
            lease = claimed(store, "alice")
            assert store.complete(lease, succeeded())
    finally:
        admin.execute("ALTER DATABASE taskguard RESET default_transaction_isolation")


def test_a_role_whose_transactions_are_read_only_by_default_can_claim(
    admin: psycopg.Connection, postgres_server: PostgresServer
):
    admin.execute("ALTER DATABASE taskguard SET default_transaction_read_only = on")
    try:
        with closing(open_store(postgres_server.url, namespace=uuid4().hex)) as store:
            lease = claimed(store, "alice")
            assert store.renew([(lease, LONG)]) == [True]
            assert store.complete(lease, succeeded())
        with closing(open_store(f"{postgres_server.url}?schema=fresh_{uuid4().hex}")) as fresh:
            assert fresh.get("key") is None  # its schema was made
    finally:
        admin.execute("SET default_transaction_read_only = off")
        admin.execute("ALTER DATABASE taskguard RESET default_transaction_read_only")


def test_a_standby_is_unavailable_until_it_is_promoted_and_can_be_looked_at():
    with closing(require(PostgresServer)) as server:
        with closing(open_store(server.url)) as store:
            lease = claimed(store, "alice")
        server.stop()
        signal_file = server.data / "standby.signal"
        signal_file.touch()
        server.give(signal_file)
        server.start()
        with closing(open_store(server.url)) as store:
            for verb in (lambda: store.claim(ask("bob", "other")), lambda: store.renew([(lease, LONG)])):
                with pytest.raises(StoreUnavailableError, match="recovery|read-only"):
                    verb()
            assert [entry.owner for entry in store.scan()] == ["alice"]
            with psycopg.connect(server.url, autocommit=True) as admin:
                assert admin.execute("SELECT pg_promote()").fetchone() == (True,)
            assert store.renew([(lease, LONG)]) == [True]


def test_a_server_that_is_down_is_unavailable_and_works_when_it_is_back():
    with closing(require(PostgresServer)) as server, closing(open_store(server.url)) as store:
        lease = claimed(store, "alice")
        server.stop()
        with pytest.raises(StoreUnavailableError):
            store.claim(ask("bob"))
        server.start()
        assert isinstance(store.claim(ask("bob")), Held)
        assert store.complete(lease, succeeded())


def test_a_server_that_does_not_answer_is_unavailable_after_the_timeout():
    with closing(require(PostgresServer)) as server, closing(open_store(f"{server.url}?timeout=0.5")) as store:
        claimed(store, "alice")
        server.pause()
        try:
            with pytest.raises(StoreUnavailableError):
                store.claim(ask("bob"))
        finally:
            server.resume()
        assert isinstance(store.claim(ask("bob")), Held)


def test_a_role_without_rights_is_told_what_to_grant(admin: psycopg.Connection, postgres_server: PostgresServer):
    role = f"poor_{uuid4().hex[:8]}"
    admin.execute(f"CREATE ROLE {role} LOGIN")
    admin.execute(f"CREATE SCHEMA other_{role}")
    try:
        url = postgres_server.url.replace("taskguard@", f"{role}@").replace("//taskguard:", f"//{role}:")
        with closing(open_store(f"{url}?schema=missing_{role}")) as store, pytest.raises(StoreError) as caught:
            store.claim(ask("alice"))
        assert "GRANT" in str(caught.value)
        assert not isinstance(caught.value, StoreUnavailableError)
    finally:
        admin.execute(f"DROP SCHEMA other_{role}")
        admin.execute(f"DROP ROLE {role}")


def test_a_schema_of_an_older_version_is_brought_up_to_date_by_whoever_asks_first(
    admin: psycopg.Connection, postgres_server: PostgresServer
):
    schema = f"older_{uuid4().hex[:8]}"
    url = f"{postgres_server.url}?schema={schema}"
    with closing(open_store(url)) as store:
        claimed(store, "alice")
    admin.execute(f"ALTER TABLE {schema}.entry DROP COLUMN label, DROP COLUMN whereabouts")

    with closing(open_store(url)) as store:
        entry = store.get("key")
        assert entry is not None and (entry.owner, entry.label) == ("alice", "")
        claimed(store, "bob", "other", label="order_id=42")
        entry = store.get("other")
        assert entry is not None and entry.label == "order_id=42"


def test_apps_keep_apart_by_schema(store: Store, postgres_server: PostgresServer, namespace: str):
    claimed(store, "alice")
    with closing(open_store(f"{postgres_server.url}?schema=second", namespace=namespace)) as other:
        assert isinstance(other.claim(ask("bob")), Lease)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:s3cr3t@host:port/db",
        "postgresql://user:s3cr3t@127.0.0.1:1/db?no_such_option=1",
        "postgresql://user:s3cr3t@127.0.0.1:1/db?timeout=soon",
        "postgresql://user:s3cr3t@127.0.0.1:1/db?schema=Bad-Name",
    ],
)
def test_a_malformed_url_is_one_clear_error_without_the_password(url: str):
    with pytest.raises((ConfigurationError, StoreUnavailableError)) as caught, closing(open_store(url)) as store:
        store.claim(ask("alice"))
    assert "s3cr3t" not in f"{caught.value!s}{caught.value!r}{caught.value.__cause__!r}"


def test_an_unreachable_server_is_shown_without_the_password():
    with closing(open_store("postgresql://user:s3cr3t@127.0.0.1:1/db")) as store:
        with pytest.raises(StoreUnavailableError) as caught:
            store.claim(ask("alice"))
        assert "s3cr3t" not in f"{caught.value!s}{caught.value!r}{store!r}"


def test_a_hundred_leases_are_renewed_in_one_statement_and_in_order(store: Store):
    leases = [claimed(store, "alice", f"key {number}") for number in range(100)]
    store.release(leases[7], Ending(keep_for=60))

    answers = store.renew([(lease, LONG) for lease in leases])
    assert answers == [number != 7 for number in range(100)]
