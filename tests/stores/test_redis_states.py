"""What a server says that cannot serve us now, or will never: in every version that words it differently."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import pytest
import redis

from taskguard.errors import StoreError, StoreUnavailableError
from taskguard.guard import Guard
from taskguard.protocol.store import Claimant, Ending, Lease, Store
from taskguard.stores import open_store
from taskguard.testing.contract import LONG, ask, claimed, requeued, succeeded
from tests.servers import RedisServer, require
from tests.servers.redis import FLAVOURS


@pytest.fixture(scope="module", params=FLAVOURS)
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with closing(require(request.param)) as server:
        yield server


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    with closing(redis.Redis.from_url(server.url)) as client:
        yield client
        client.execute_command("REPLICAOF", "NO", "ONE")
        for name in ("maxmemory", "min-replicas-to-write"):
            client.config_set(name, 0)


@pytest.fixture
def store(server: RedisServer) -> Iterator[Store]:
    with closing(open_store(server.url, namespace=uuid4().hex)) as store:
        yield store


STATES = {
    "full": ("maxmemory", 1),
    "without replicas": ("min-replicas-to-write", 2),
}


@pytest.mark.parametrize("state", STATES)
def test_a_server_that_cannot_write_now_is_unavailable_and_nothing_is_lost(
    state: str, client: redis.Redis, store: Store
):
    lease = claimed(store, "alice")
    name, value = STATES[state]
    client.config_set(name, value)
    for verb in (
        lambda: store.claim(ask("bob", "other")),
        lambda: store.renew([(lease, LONG)]),
        lambda: requeued(store, lease),
        lambda: store.complete(lease, succeeded()),
    ):
        with pytest.raises(StoreUnavailableError, match="memory|NOREPLICAS"):
            verb()
    client.config_set(name, 0)

    assert store.renew([(lease, LONG)]) == [True]
    assert isinstance(store.claim(ask("bob", "other")), Lease)


def test_work_that_ends_while_the_server_is_full_is_kept_and_not_run_again(server: RedisServer, client: redis.Redis):
    guard, runs = Guard(server.url, namespace=uuid4().hex), []
    complete = guard.store.complete

    def body() -> int:
        runs.append(1)
        client.config_set("maxmemory", 1)
        return 42

    def complete_and_make_room(claimant: Claimant, ending: Ending) -> bool:
        try:
            return complete(claimant, ending)
        finally:
            client.config_set("maxmemory", 0)

    guard.store.complete = complete_and_make_room  # type: ignore[method-assign]
    with closing(guard):
        assert guard.run("job", body, keep_for=60) == 42
        assert guard.run("job", body, keep_for=60) == 42
    assert len(runs) == 1


def test_a_connection_to_a_server_that_became_read_only_is_not_kept(client: redis.Redis, store: Store):
    claimed(store, "alice")
    before = {line["id"] for line in client.client_list()}
    client.execute_command("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(StoreUnavailableError, match="(?i)read.?only"):
        store.claim(ask("bob", "other"))
    client.execute_command("REPLICAOF", "NO", "ONE")
    assert isinstance(store.claim(ask("bob", "other")), Lease)

    assert {line["id"] for line in client.client_list()} - before  # a new one: it may lead to the new primary


@pytest.mark.parametrize("code", ["-OOM", "READONLY", "@user_script: 1: -OOM", "WRONGTYPE"])
def test_a_key_that_is_called_like_a_state_is_only_a_key(code: str, client: redis.Redis, server: RedisServer):
    namespace = uuid4().hex
    client.set(f"{namespace}:{{{code} x}}", "mine")

    with closing(open_store(server.url, namespace=namespace)) as store, pytest.raises(StoreError) as caught:
        store.claim(ask("alice", f"{code} x"))
    assert not isinstance(caught.value, StoreUnavailableError)
    assert "a value that taskguard did not write" in str(caught.value)


@pytest.mark.parametrize("taken", ["-@scripting", "-set", "-time", "resetkeys"])
def test_a_user_without_a_right_is_one_clear_error(taken: str, client: redis.Redis, server: RedisServer):
    client.execute_command("ACL", "SETUSER", "poor", "reset", "on", ">pw", "~*", "+@all", taken)
    url = server.url.replace("redis://", "redis://poor:pw@")

    with (
        closing(open_store(url, namespace="n")) as store,
        pytest.raises(StoreError, match=r"lacks a permission.*~n:\*") as e,
    ):
        store.claim(ask("alice"))
    assert not isinstance(e.value, StoreUnavailableError)


def test_a_user_with_the_rights_that_the_error_names_is_enough(client: redis.Redis, server: RedisServer):
    namespace = uuid4().hex
    rights = ["+@read", "+@write", "+@scripting", "+@connection", "+time", "+info"]
    client.execute_command("ACL", "SETUSER", "just", "reset", "on", ">pw", f"~{namespace}:*", *rights)
    url = server.url.replace("redis://", "redis://just:pw@")

    with closing(open_store(url, namespace=namespace)) as store:
        lease = claimed(store, "alice")
        assert store.renew([(lease, LONG)]) == [True]
        assert store.complete(lease, succeeded())
        assert [entry.key for entry in store.scan()] == ["key"]
        assert store.history.read() == []  # type: ignore[attr-defined]
