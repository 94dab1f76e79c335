from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from uuid import uuid4

import pytest
import redis

from taskguard.errors import ConfigurationError, StoreError, StoreUnavailableError
from taskguard.protocol.store import Ending, Held, Lease, Store
from taskguard.stores import open_store
from taskguard.stores.redis import RedisStore
from taskguard.testing import StoreContract
from taskguard.testing.contract import LONG, ask, claimed, requeued, succeeded
from tests.children import in_fork
from tests.servers import Proxy, RedisServer, require


class RedisContract(StoreContract):
    flavour: str
    walks = 2

    @pytest.fixture(scope="class")
    @classmethod
    def server(cls) -> Iterator[RedisServer]:
        with closing(require(cls.flavour)) as server:
            yield server

    @pytest.fixture
    def namespace(self) -> str:
        return uuid4().hex

    @pytest.fixture
    def opener(self, server: RedisServer, namespace: str):
        return partial(open_store, server.url, namespace=namespace)

    @pytest.fixture
    def store(self, opener: Callable[[], Store]):
        with closing(opener()) as store:
            yield store

    @pytest.fixture
    def elapse(self):
        return lambda seconds: time.sleep(seconds + 0.001)  # the server owns the clock

    @pytest.fixture
    def wipe(self, server: RedisServer):
        return lambda: redis.Redis.from_url(server.url).flushall()

    @pytest.fixture
    def restart(self, server: RedisServer):
        return lambda: (server.kill(), server.start())


class TestValkey(RedisContract):
    flavour = "valkey"
    walks = 4


class TestRedis6(RedisContract):
    flavour = "redis-6.2"


class TestRedis8(RedisContract):
    flavour = "redis-8"


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with closing(redis.Redis.from_url(redis_server.url)) as client:
        yield client


@pytest.fixture
def namespace() -> str:
    return uuid4().hex


@pytest.fixture
def store(redis_server: RedisServer, namespace: str) -> Iterator[Store]:
    with closing(open_store(redis_server.url, namespace=namespace)) as store:
        yield store


def test_every_verb_is_one_round_trip(client: redis.Redis, store: Store):
    lease = claimed(store, "alice")
    store.renew([(lease, LONG)])
    store.get("key")
    store.forget("other")
    requeued(store, lease)
    store.release(claimed(store, "alice"), Ending(keep_for=LONG))
    store.complete(claimed(store, "alice"), succeeded())
    before = client.info("commandstats")
    lease = claimed(store, "alice", "counted")
    store.renew([(lease, LONG), (lease, LONG)])
    store.complete(lease, succeeded())
    after = client.info("commandstats")

    calls = {name: after[name]["calls"] - before.get(name, {"calls": 0})["calls"] for name in after}
    assert calls["cmdstat_evalsha"] == 4
    assert calls.get("cmdstat_eval", 0) == 0


def test_scripts_that_the_server_forgot_are_taught_again(client: redis.Redis, store: Store):
    lease = claimed(store, "alice")
    client.script_flush()
    assert store.renew([(lease, LONG), (lease, LONG)]) == [True, True]
    client.script_flush()
    assert store.complete(lease, succeeded())
    client.script_flush()
    assert isinstance(store.claim(ask("bob")), Lease)


def test_a_held_entry_takes_at_most_400_bytes(client: redis.Redis, store: Store, namespace: str):
    key = f"reports.tasks.nightly:1:{uuid4().hex}"
    store.claim(ask(str(uuid4()), key, payload=uuid4().hex))

    (name,) = client.scan_iter(match=f"{namespace}:*")
    assert client.memory_usage(name) <= 400


def test_nothing_is_left_once_the_retention_is_over(client: redis.Redis, store: Store, namespace: str):
    short = {"lease": 0.1, "keep_for": 0.1}
    store.complete(claimed(store, "alice", "done", **short), succeeded(keep_for=0.1))
    store.release(claimed(store, "alice", "freed", **short), Ending(how="failed", keep_for=0.1))
    claimed(store, "alice", "abandoned", **short)
    time.sleep(0.25)

    assert list(client.scan_iter(match=f"{namespace}:*")) == []


def test_every_key_has_an_end(client: redis.Redis, store: Store, namespace: str):
    store.complete(claimed(store, "alice", "done"), succeeded())
    store.release(claimed(store, "alice", "freed"), Ending(keep_for=LONG))
    claimed(store, "alice", "running")
    claimed(store, "alice", "queued", state="queued")
    store.claim(ask("bob", "running", skip=True))
    store.forget("running")

    names = list(client.scan_iter(match=f"{namespace}:*"))
    assert len(names) == 7
    assert all(client.pttl(name) > 0 for name in names)


def test_all_that_a_verb_touches_is_in_one_slot(client: redis.Redis, store: Store, namespace: str):
    for key in ("plain", "{braces}", "}", "a}b{c"):
        store.complete(claimed(store, "alice", key), succeeded())
    names = [name.decode() for name in client.scan_iter(match=f"{namespace}:*")]
    tags = [name[name.index("{") + 1 : name.index("}")] for name in names]

    assert len(names) == 8
    assert "" not in tags
    assert all(tags.count(tag) == 2 for tag in tags)


def test_a_foreign_value_under_our_key_is_one_clear_error_and_stays(client: redis.Redis, store: Store, namespace: str):
    client.lpush(f"{namespace}:{{a list}}", "mine")
    client.set(f"{namespace}:{{a text}}", "mine")

    for key in ("a list", "a text"):
        with pytest.raises(StoreError, match="taskguard did not write.*namespace of its own"):
            store.claim(ask("alice", key))
    assert client.lrange(f"{namespace}:{{a list}}", 0, -1) == [b"mine"]
    assert client.get(f"{namespace}:{{a text}}") == b"mine"


def test_scan_leaves_out_what_is_not_ours_and_says_so_once(
    client: redis.Redis, store: Store, namespace: str, caplog: pytest.LogCaptureFixture
):
    for number in range(20):
        claimed(store, "alice", f"ours {number}")
    client.lpush(f"{namespace}:{{a list}}", "mine")
    client.set(f"{namespace}:{{a text}}", "mine")
    client.set(f"{namespace}:{{a packed array}}", b"\x93\x01\x02\x03")
    client.set(f"{namespace}:".encode() + b"{\xff\xfe}", "mine")
    client.set(f"{namespace}:{{%FF}}", "mine")

    for _ in range(2):
        assert {entry.key for entry in store.scan()} == {f"ours {number}" for number in range(20)}
    assert len(caplog.records) == 1
    assert "skips the key" in caplog.text


def test_a_packed_value_of_somebody_elses_under_our_key_is_the_same_clear_error(
    client: redis.Redis, store: Store, namespace: str
):
    for value in (b"\x93\x01\x02\x03", b"\x81\xa1a\x01"):
        client.set(f"{namespace}:{{packed}}", value)
        with pytest.raises(StoreError, match="a value that taskguard did not write"):
            store.claim(ask("alice", "packed"))


def test_a_store_opened_before_a_fork_works_in_the_child(store: Store):
    lease = claimed(store, "parent")
    assert store.renew([(lease, LONG)]) == [True]

    assert in_fork(lambda: store.renew([(lease, LONG)])) == [True]
    assert in_fork(lambda: isinstance(store.claim(ask("child")), Held))
    assert isinstance(store.claim(ask("parent", "other")), Lease)


def test_a_server_that_is_down_is_unavailable():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(StoreUnavailableError):
            open_store(f"redis://127.0.0.1:{unused.getsockname()[1]}").claim(ask("alice"))


def test_a_server_that_does_not_answer_is_unavailable_after_the_timeout(proxy: Proxy, redis_server: RedisServer):
    store = open_store(f"{proxy.url(redis_server.url)}?timeout=0.2")
    claimed(store, "alice", uuid4().hex)
    proxy.blackhole()

    with pytest.raises(StoreUnavailableError):
        store.claim(ask("bob", uuid4().hex))


def test_a_reply_that_was_lost_is_unavailable_and_the_same_claim_gets_its_lease(
    proxy: Proxy, redis_server: RedisServer
):
    store = open_store(proxy.url(redis_server.url))
    claimed(store, "warm", uuid4().hex)
    request = ask("alice", uuid4().hex)
    proxy.swallow(1)

    with pytest.raises(StoreUnavailableError):
        store.claim(request)
    assert isinstance(open_store(redis_server.url).claim(ask("bob", request.key)), Held)  # it was carried out
    assert isinstance(store.claim(request), Lease)


def test_a_connection_that_an_exception_went_through_is_not_used_again(proxy: Proxy, redis_server: RedisServer):
    # The reply of the interrupted request is still on its way: whoever came next would read it as its own.
    import signal

    store = open_store(proxy.url(redis_server.url))
    claimed(store, "warm", uuid4().hex)
    first, second = uuid4().hex, uuid4().hex
    proxy.blackhole(requests=False)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def soon() -> None:  # the question has left, and no answer comes before it is interrupted
        signal.setitimer(signal.ITIMER_REAL, 0.05)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            store.claim(ask("alice", first, meanwhile=soon))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        proxy.heal()

    assert store.get(second) is None
    entry = store.get(first)
    assert entry is not None
    assert entry.key == first


def test_what_the_caller_does_meanwhile_is_done_before_the_answer_is_there(proxy: Proxy, redis_server: RedisServer):
    store, key, done = open_store(proxy.url(redis_server.url)), uuid4().hex, []
    claimed(store, "warm", uuid4().hex)
    proxy.blackhole(requests=False)

    def meanwhile() -> None:
        done.append(key)
        proxy.heal()  # only now does the answer come

    assert isinstance(store.claim(ask("alice", key, meanwhile=meanwhile)), Lease)
    assert done == [key]


def test_what_the_caller_does_meanwhile_can_ask_the_same_store(store: Store):
    key, other, done = uuid4().hex, uuid4().hex, []

    def meanwhile() -> None:
        done.append(claimed(store, "bob", other))

    assert claimed(store, "alice", key, meanwhile=meanwhile).key == key
    assert done[0].key == other


def test_a_connection_is_not_used_again_if_what_was_done_meanwhile_was_interrupted(store: Store):
    first, second = uuid4().hex, uuid4().hex

    def interrupted() -> None:
        raise KeyboardInterrupt

    claimed(store, "warm", uuid4().hex)
    claim = ask("alice", first, meanwhile=interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.claim(claim)
    assert store.get(second) is None  # and not the answer to the claim
    assert isinstance(store.claim(replace(claim, meanwhile=None)), Lease)


@pytest.mark.parametrize("how", ["password", "unix socket", "tls"])
def test_servers_are_reached_by_password_unix_socket_and_tls(how: str, redis_server: RedisServer):
    if how == "tls":
        server = require("redis-7-tls")
        url = server.tls_url
    else:
        server = require(redis_server.name, password="s3cr3t" if how == "password" else "", unix_socket=True)
        url = server.url if how == "password" else server.unix_url
    with closing(server), closing(open_store(url)) as store:
        assert isinstance(store.claim(ask("alice")), Lease)
        assert "s3cr3t" not in repr(store)


def test_a_wrong_password_is_one_clear_error_without_the_password(redis_server: RedisServer):
    with closing(require(redis_server.name, password="right")) as server:
        url = server.url.replace("right", "wr0ng-s3cr3t")
        with pytest.raises(StoreError, match="check the user and the password") as caught:
            open_store(url).claim(ask("alice"))
    assert not isinstance(caught.value, StoreUnavailableError)
    assert "s3cr3t" not in f"{caught.value!s}{caught.value!r}"


@pytest.mark.parametrize(
    "url", ["redis://:s3cr3t@host:port/0", "redis://:s3cr3t@host/0?socket_timeout=x", "redis://:s3cr3t@h?timeout=x"]
)
def test_a_malformed_url_is_one_clear_error_without_the_password(url: str):
    with pytest.raises(ConfigurationError, match="write redis://") as caught:
        open_store(url)
    assert "s3cr3t" not in f"{caught.value!s}{caught.value!r}"


def test_a_namespace_with_braces_is_refused(redis_server: RedisServer):
    with pytest.raises(ConfigurationError, match="must not contain braces"):
        open_store(redis_server.url, namespace="{a}")


def test_a_long_outage_costs_nothing_once_the_server_is_back(redis_server: RedisServer):
    with closing(require(redis_server.name)) as server, closing(open_store(server.url)) as store:
        claimed(store, "alice")
        server.kill()
        for _ in range(150):  # more than the driver's pool would count
            with pytest.raises(StoreUnavailableError):
                store.claim(ask("bob"))
        server.start()

        assert isinstance(store.claim(ask("bob", "new")), Lease)


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("decode_responses", [False, True])
def test_a_client_of_somebody_elses_can_be_used(redis_server: RedisServer, protocol: int, decode_responses: bool):
    with closing(
        redis.Redis.from_url(redis_server.url, protocol=protocol, decode_responses=decode_responses, max_connections=1)
    ) as client:
        store = RedisStore(client, namespace=uuid4().hex)
        lease = claimed(store, "alice", "key", payload="digest")

        assert store.renew([(lease, LONG)]) == [True]
        assert store.complete(lease, succeeded(b"\xff"))
        assert [entry.key for entry in store.scan()] == ["key"]
        assert client.ping()


@pytest.mark.parametrize("client", [None, "redis://host", 7])
def test_what_is_no_client_is_refused(client: object):
    with pytest.raises(ConfigurationError, match="takes a redis.Redis client"):
        RedisStore(client)  # type: ignore[arg-type]


RENEWING_THREADS = """
import gevent.monkey
gevent.monkey.patch_all()
import os, sys, time
from taskguard import open_store
from taskguard.runtime import native
from taskguard.testing.contract import claimed

store = open_store(sys.argv[1], namespace=sys.argv[2])
lease = claimed(store, "alice")
renewed = []

def renew():
    renewed.append(store.renew([(lease, 60)]))

def sockets():
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return sum(os.readlink(link).startswith("socket:") for link in links if os.path.lexists(link))

before = sockets()
for number in range(1, 31):
    native.start_thread(renew)
    until = time.monotonic() + 20
    while len(renewed) < number and time.monotonic() < until:
        time.sleep(0.005)
assert renewed == [[True]] * 30, renewed
assert sockets() - before <= 5, (before, sockets())
store.close()
print("flat")
"""


def test_connections_of_renewal_threads_that_have_ended_are_closed_under_gevent(
    redis_server: RedisServer, namespace: str
):
    command = [sys.executable, "-c", RENEWING_THREADS, redis_server.url, namespace]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert done.stdout == "flat\n", done.stderr


def test_a_lent_client_is_asked_by_as_many_at_once_as_it_has_connections(redis_server: RedisServer, namespace: str):
    url = f"{redis_server.url}?client_name={namespace}"
    with closing(redis.Redis.from_url(url, max_connections=3)) as client, closing(RedisStore(client)) as store:
        with ThreadPoolExecutor(12) as threads:
            list(threads.map(lambda number: claimed(store, "alice", f"{namespace} {number}"), range(300)))

        assert len([line for line in client.client_list() if line["name"] == namespace]) <= 3 + 1  # and the client's


def test_closing_a_store_closes_what_it_made_for_a_lent_client(redis_server: RedisServer, namespace: str):
    with closing(redis.Redis.from_url(f"{redis_server.url}?client_name={namespace}")) as client:
        store = RedisStore(client)
        claimed(store, "alice", namespace)
        store.close()

        assert len([line for line in client.client_list() if line["name"] == namespace]) == 1
        assert client.ping()
