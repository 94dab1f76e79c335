"""Replies that are lost on the wire after the request was carried out: the best finder of bugs in locks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from taskguard import Guard, StoreUnavailableError
from taskguard.protocol.store import Held, Store
from taskguard.testing.contract import RELEASED, ask, claimed
from tests.naive import open_any
from tests.servers import Proxy, RedisServer

pytestmark = pytest.mark.safety


@pytest.fixture
def url(redis_server: RedisServer, proxy: Proxy, request: pytest.FixtureRequest) -> str:
    naive = "naive+" if request.config.getoption("--bite") else ""
    return f"{naive}{proxy.url(redis_server.url)}"


@pytest.fixture
def store(url: str, proxy: Proxy) -> Iterator[Store]:
    with closing(open_any(url, namespace=f"lost{proxy.port}")) as store:
        store.get("warm")
        yield store


@pytest.fixture
def scripts(request: pytest.FixtureRequest) -> bytes:
    """The requests whose replies are lost: those that change something, not the driver's handshake."""
    return b"SET" if request.config.getoption("--bite") else b"EVALSHA"


@pytest.fixture
def guard(store: Store) -> Guard:
    return Guard(store, patience=10)


def test_no_job_is_locked_out_of_its_own_key_and_no_token_is_granted_twice(guard: Guard, proxy: Proxy, scripts: bytes):
    proxy.swallow_randomly(0.3, seed=1, to=scripts)
    tokens = []
    for number in range(100):
        with guard.hold(f"key {number % 5}", lease=10) as fence:
            tokens.append((fence.key, fence.token))

    assert proxy.swallowed > 30
    for key in {key for key, _ in tokens}:
        mine = [token for owner, token in tokens if owner == key]
        assert mine == sorted(set(mine))


def test_work_whose_every_second_reply_is_lost_is_done_once(guard: Guard, proxy: Proxy, scripts: bytes):
    done = []
    proxy.swallow_randomly(0.5, seed=2, to=scripts)
    for number in range(60):
        answer = guard.run(f"invoice {number % 20}", lambda: done.append(1) or len(done), keep_for=600, wait_up_to=2)
        assert isinstance(answer, int)

    assert proxy.swallowed > 20
    assert len(done) == 20


def test_a_release_asked_again_after_a_lost_reply_does_not_free_the_next_holder(store: Store, proxy: Proxy):
    store.release(claimed(store, "alice", "warm"), RELEASED)  # the server knows the script: the reply lost is no other
    lease = claimed(store, "alice")
    proxy.swallow(1)
    with pytest.raises(StoreUnavailableError):
        store.release(lease, RELEASED)
    claimed(store, "bob")

    assert store.release(lease, RELEASED)
    assert isinstance(store.claim(ask("carol")), Held)
