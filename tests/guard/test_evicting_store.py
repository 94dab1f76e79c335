"""A Redis that removes entries when its memory is short: it is said once, refused, or ignored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest
import redis

from taskguard import ConfigurationError, Event, Guard
from taskguard.protocol.policy import Policy
from tests.children import in_fork
from tests.servers import Proxy, RedisServer, require
from tests.servers.redis import FLAVOURS

EVICTING = {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}


@pytest.fixture(autouse=True)
def a_process_that_knows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port comes again within one process of tests."""
    monkeypatch.setattr("taskguard.stores.redis._evictions", {})


@pytest.fixture(params=["valkey", "redis-6.2"])
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with closing(require(request.param, settings=EVICTING)) as server:
        yield server


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    with closing(redis.Redis.from_url(server.url)) as client:
        yield client


def guard_on(server: Any, events: list[Event], **options: Any) -> Guard:
    return Guard(server.url, namespace=uuid4().hex, listeners=[events.append], history=False, **options)


def infos(client: redis.Redis) -> int:
    return int(client.info("commandstats").get("cmdstat_info", {"calls": 0})["calls"])


def said(events: list[Event]) -> list[Event]:
    return [event for event in events if event.kind == "store_evicts"]


def test_it_is_said_once_and_the_work_is_done(server: RedisServer, client: redis.Redis):
    events: list[Event] = []
    guard = guard_on(server, events)
    with guard.hold("first"):
        pass
    before = infos(client)
    assert guard.run("second", lambda: 2, keep_for=60) == 2

    [event] = said(events)
    assert "allkeys-lru" in event.detail and "maxmemory-policy noeviction" in event.detail
    assert infos(client) == before + 1  # this very look


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("policy", ["volatile-ttl", "allkeys-lfu", "noeviction"])
def test_every_policy_but_one_evicts(flavour: str, policy: str):
    events: list[Event] = []
    settings = {"maxmemory": "100mb", "maxmemory-policy": policy}
    with closing(require(flavour, settings=settings)) as server, guard_on(server, events).hold("key"):
        pass
    assert bool(said(events)) == (policy != "noeviction")


def test_a_server_without_a_limit_does_not_evict(client: redis.Redis, server: RedisServer):
    events: list[Event] = []
    client.config_set("maxmemory", 0)
    with guard_on(server, events, on_evicting_store="refuse").hold("key"):
        pass
    assert said(events) == []


def test_refused_nothing_is_claimed_until_the_server_is_set_right(client: redis.Redis, server: RedisServer):
    guard = guard_on(server, [], on_evicting_store="refuse")
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="allkeys-lru.*set maxmemory-policy noeviction"), guard.hold("key"):
            pytest.fail("entered")
    assert client.dbsize() == 0

    client.config_set("maxmemory-policy", "noeviction")
    with guard.hold("key"):
        pass


def test_ignored_it_is_not_even_asked(client: redis.Redis, server: RedisServer):
    events: list[Event] = []
    before = infos(client)
    with guard_on(server, events, on_evicting_store="ignore").hold("key"):
        pass
    assert said(events) == []
    assert infos(client) == before + 1


def test_a_user_who_may_not_ask_is_told_nothing(client: redis.Redis, server: RedisServer):
    events: list[Event] = []
    client.execute_command("ACL", "SETUSER", "poor", "on", ">pw", "~*", "+@all", "-info")
    server = type("", (), {"url": server.url.replace("redis://", "redis://poor:pw@")})()
    for option in ("warn", "refuse"):
        with guard_on(server, events, on_evicting_store=option).hold("key"):
            pass
    assert said(events) == []


def test_a_child_knows_what_its_parent_knew_and_says_it_for_all(client: redis.Redis, server: RedisServer):
    events: list[Event] = []
    guard = guard_on(server, events)
    store: Any = guard.store
    store.eviction.learn(store.eviction_policy)
    before = infos(client)

    def in_child() -> int:
        with guard.hold(uuid4().hex):
            pass
        return len(said(events))

    assert [in_fork(in_child) for _ in range(3)] == [1, 0, 0]
    assert infos(client) == before + 1


def test_a_server_that_goes_away_when_it_is_asked_is_asked_at_the_next_claim(server: RedisServer):
    events: list[Event] = []
    with Proxy(server.port) as proxy:
        away = type("", (), {"url": f"{proxy.url(server.url)}?timeout=0.3"})()
        guard = guard_on(away, events)
        claim = guard.store.claim

        def claim_and_go(asked: Any) -> Any:
            answer = claim(asked)
            proxy.blackhole()
            return answer

        guard.store.claim = claim_and_go  # type: ignore[method-assign]
        assert guard.ask(guard.new_claim("key", "owner", Policy.of()))[1].key == "key"
        assert said(events) == []

        proxy.heal()
        guard.store.claim = claim  # type: ignore[method-assign]
        with guard.hold("other"):
            pass
        assert len(said(events)) == 1


def test_a_word_that_is_not_known_is_refused():
    with pytest.raises(ConfigurationError, match="on_evicting_store='panic' is not known; write warn"):
        Guard("memory://", on_evicting_store="panic")  # type: ignore[arg-type]
