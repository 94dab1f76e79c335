"""Keys of Redis behind a fence, on real servers; lost replies by a proxy."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest
import redis
from redis.crc import key_slot

from taskguard import ConfigurationError, Guard, StaleFenceError
from taskguard.fence import Effects
from taskguard.fencing import commands
from taskguard.fencing.redis import FencedRedis
from taskguard.fencing.slots import beside
from tests.fencing.elsewhere.cluster import Cluster
from tests.fencing.elsewhere.fences import fence, succession
from tests.servers import Proxy, RedisServer, require


@pytest.fixture(params=["valkey", "redis-8", "redis-6.2", "cluster"], scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "cluster":
        with closing(request.getfixturevalue("cluster").client()) as client:
            yield client
        return
    with closing(require(request.param)) as server, closing(redis.Redis.from_url(server.url)) as client:
        yield client


@pytest.fixture
def key() -> str:
    return f"balance:{uuid4().hex}"


def test_a_stale_holder_is_refused_and_told_the_mark(server: Any, guard: Guard, key: str):
    stale, newer = succession(guard)
    FencedRedis(server, newer).set(key, "new")

    with pytest.raises(StaleFenceError) as refused:
        FencedRedis(server, stale).set(key, "old")
    error = refused.value
    assert (error.key, error.token, error.resource, error.mark) == ("job", stale.token, key, newer.token)
    assert server.get(key) == b"new"


def test_one_holder_writes_often_and_each_write_counts(server: Any, guard: Guard, key: str):
    fenced = FencedRedis(server, fence(guard))

    assert [fenced.incrby(key, 5) for _ in range(3)] == [5, 10, 15]


def test_writes_look_as_the_driver_makes_them_and_reads_pass(server: Any, guard: Guard, key: str):
    fenced = FencedRedis(server, fence(guard))
    hash_, board = f"{{{key}}}h", f"{{{key}}}z"

    assert fenced.set(key, "a", ex=100, nx=True) is True
    assert fenced.set(key, "b", nx=True) is None
    assert fenced.get(key) == b"a"
    assert 0 < fenced.ttl(key) <= 100
    assert fenced.hset(hash_, mapping={"a": 1, "b": 2}) == 2
    assert fenced.hgetall(hash_) == {b"a": b"1", b"b": b"2"}
    assert fenced.zadd(board, {"x": 1.5}) == 1
    assert fenced.zincrby(board, 1, "x") == 2.5
    assert fenced.expire(board, 50) is True
    assert fenced.execute("SETRANGE", key, 1, "z") == 2
    assert fenced.delete(key) == 1


def test_a_method_that_is_neither_is_not_passed_on_unfenced(server: Any, guard: Guard):
    with pytest.raises(AttributeError, match="execute"):
        FencedRedis(server, fence(guard)).flushall()


def test_the_driver_has_every_method_that_is_offered(client: redis.Redis):
    assert [name for name in (*commands._WRITES, *commands.READS) if not hasattr(client, name)] == []


def test_several_writes_are_one_step_under_one_comparison(server: Any, guard: Guard, key: str):
    stale, newer = succession(guard)
    balance, log = f"balance:{{{key}}}", f"log:{{{key}}}"
    with FencedRedis(server, newer).transaction() as tx:
        tx.incrby(balance, 7)
        tx.rpush(log, "credited 7")

    assert tx.replies == [7, 1]
    with pytest.raises(StaleFenceError), FencedRedis(server, stale).transaction() as late:
        late.rpush(f"other:{{{key}}}", "x")  # nobody has written this one, and yet nothing of it is done
        late.incrby(balance, 1)
    assert server.get(balance) == b"7"
    assert not server.exists(f"other:{{{key}}}")


def test_a_block_that_fails_writes_nothing(server: Any, guard: Guard, key: str):
    with pytest.raises(ZeroDivisionError), FencedRedis(server, fence(guard)).transaction() as tx:
        tx.set(key, 1)
        1 / 0  # noqa: B018
    assert not server.exists(key)


def test_keys_of_one_resource_share_its_mark(server: Any, guard: Guard, key: str):
    stale, newer = succession(guard)
    resource = f"account:{{{key}}}"
    FencedRedis(server, newer, resource=resource).set(f"{{{key}}}a", 1)

    with pytest.raises(StaleFenceError, match="account"):
        FencedRedis(server, stale, resource=resource).set(f"{{{key}}}b", 2)


def test_a_write_that_is_made_once_has_its_first_reply_again(server: Any, guard: Guard, key: str):
    first, second = succession(guard)

    assert FencedRedis(server, first).once("credit").incrby(key, 5) == 5
    assert FencedRedis(server, second).once("credit").incrby(key, 5) == 5
    assert FencedRedis(server, second).once("fee").incrby(key, -1) == 4
    with FencedRedis(server, second).once("both").transaction() as tx:
        tx.set(key, 10)
        tx.getset(key, 11)
    with FencedRedis(server, second).once("both").transaction() as again:
        again.set(key, 10)
        again.getset(key, 11)
    assert again.replies == tx.replies == [True, b"10"]


def test_a_transaction_is_made_once_also_if_its_keys_come_in_another_order(server: Any, guard: Guard, key: str):
    """As those of a set do in another process."""
    accounts = [f"{{{key}}}:{name}" for name in ("a", "b", "c")]
    for mine, order in zip(succession(guard), (accounts, accounts[::-1]), strict=True):
        with FencedRedis(server, mine).once("settle").transaction() as tx:
            for account in order:
                tx.incrby(account, 5)

    assert server.mget(accounts) == [b"5"] * 3


def test_a_first_write_that_failed_is_not_remembered(server: Any, guard: Guard, key: str):
    server.set(key, "no number")
    credit = FencedRedis(server, fence(guard)).once("credit")
    with pytest.raises(redis.ResponseError, match="not an integer"):
        credit.incrby(key, 5)
    server.set(key, 1)

    assert credit.incrby(key, 5) == 6


def test_a_transaction_that_failed_half_way_says_so_and_is_not_repeated(server: Any, guard: Guard, key: str):
    fenced = FencedRedis(server, fence(guard)).once("settle")
    for _ in range(2):
        with (
            pytest.raises(redis.ResponseError, match="write 2 of 3, HSET; the writes before"),
            fenced.transaction() as tx,
        ):
            tx.incrby(key, 1)
            tx.hset(key, "a", 1)
            tx.incrby(key, 1)

    assert server.get(key) == b"1"


def test_a_command_that_is_too_long_for_a_script_is_refused_before_the_others_are_made(
    server: Any, guard: Guard, key: str
):
    """Lua would fail in the middle, and nothing would remember that the first half was made."""
    balance, log = f"balance:{{{key}}}", f"log:{{{key}}}"
    settle = FencedRedis(server, fence(guard)).once("settle")
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="one step takes at most"), settle.transaction() as tx:
            tx.incrby(balance, 1)
            tx.rpush(log, *range(9000))
    assert not server.exists(balance)
    with settle.transaction() as tx:
        tx.incrby(balance, 1)
        tx.rpush(log, *range(6990))

    assert tx.replies == [1, 6990]


def test_two_tasks_with_the_same_key_of_the_caller_s_write_once_each(server: Any, guard: Guard, key: str):
    runs = [fence(guard, idempotency_key="order 7", effect_key=task) for task in ("charge", "mail", "charge")]

    assert [FencedRedis(server, run).once("count").incrby(key, 1) for run in runs] == [1, 2, 1]


def test_other_work_under_the_same_key_writes_again_when_the_time_of_the_first_is_over(
    server: Any, guard: Guard, key: str
):
    def run(owner: str) -> int:
        mine = fence(guard)
        mine._effects = Effects("key", owner, 3600)
        return int(FencedRedis(server, mine).once("credit").incrby(key, 5))

    assert [run("job 1"), run("job 2")] == [5, 5]
    server.hincrby(beside(key.encode(), b"once") + b":3:key:credit", "until", -3_700_000)
    assert [run("job 1"), run("job 2"), run("job 3")] == [5, 10, 10]


def test_what_is_to_be_remembered_for_longer_than_a_mark_is(server: Any, guard: Guard, key: str):
    mine = fence(guard)
    mine._effects = Effects("key", "job", 3600)
    FencedRedis(server, mine, keep_for=1).once("credit").incrby(key, 5)
    memory = beside(key.encode(), b"once") + b":3:key:credit"

    assert 3_500_000 < server.pttl(memory) <= 3_600_001


def test_a_look_at_the_marks_is_not_what_was_to_be_made_once(server: Any, guard: Guard, key: str):
    credit = FencedRedis(server, fence(guard)).once("credit")
    credit.check(key)

    assert credit.incrby(key, 5) == 5


def test_a_mark_is_kept_after_the_last_write_and_not_for_ever(server: Any, guard: Guard, key: str):
    mark = beside(key.encode(), b"mark")
    FencedRedis(server, fence(guard), keep_for=1000).set(key, 1)
    FencedRedis(server, fence(guard), keep_for=10).set(key, 2)

    assert 990_000 < server.pttl(mark) <= 1_000_000


def test_a_mark_can_be_raised_without_a_write(server: Any, guard: Guard, key: str):
    stale, newer = succession(guard)
    FencedRedis(server, newer).check(key)

    with pytest.raises(StaleFenceError):
        FencedRedis(server, stale).check(key)


def test_a_server_that_forgot_its_scripts_is_taught_again(server: Any, guard: Guard, key: str):
    fenced = FencedRedis(server, fence(guard))
    fenced.set(key, 1)
    server.script_flush()

    assert fenced.incrby(key, 1) == 2


NAMES = ["plain", "user:{42}:name", "a}b", "{}whole", "{}{x}", "a{b", "a{b}c{d}", "}{", "{a}", "ü{ö}"]


def test_a_mark_lies_in_the_slot_of_its_key_whatever_the_key_looks_like():
    marks = {beside(name.encode(), b"mark") for name in NAMES}

    assert len(marks) == len(NAMES)
    for name in NAMES:
        assert key_slot(beside(name.encode(), b"mark")) == key_slot(name.encode())


def test_on_a_cluster_each_such_key_can_be_written(cluster: Cluster, guard: Guard):
    with closing(cluster.client()) as client:
        fenced = FencedRedis(client, fence(guard))
        for name in NAMES:
            assert fenced.set(name, name)


@pytest.mark.parametrize("resource", [None, "account 1"])
def test_on_a_cluster_keys_of_different_slots_are_refused_before_anything_is_sent(
    cluster: Cluster, guard: Guard, resource: str | None
):
    with closing(cluster.client()) as client:
        fenced = FencedRedis(client, fence(guard), resource=resource)
        with pytest.raises(ConfigurationError, match="hash tag"), fenced.transaction() as tx:
            tx.set("apart 1", 1)
            tx.set("apart 2", 1)

        assert client.get("apart 1") is None


def test_on_one_server_a_resource_may_have_any_keys(client: redis.Redis, guard: Guard):
    stale, newer = succession(guard)
    FencedRedis(client, newer, resource="account 1").set(uuid4().hex, 1)

    with pytest.raises(StaleFenceError):
        FencedRedis(client, stale, resource="account 1").set(uuid4().hex, 1)


def test_a_client_that_decodes_replies_or_speaks_resp3_is_as_good(redis_server: RedisServer, guard: Guard, key: str):
    stale, newer = succession(guard)
    with closing(redis.Redis.from_url(redis_server.url, decode_responses=True, protocol=3)) as client:
        fenced = FencedRedis(client, newer)

        assert fenced.set(key, "a") is True
        assert fenced.getset(key, "b") == "a"
        assert fenced.zincrby(f"{key}:z", 1.5, "x") == 1.5
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            fenced.hset(key, "a", 1)
        with pytest.raises(StaleFenceError):
            FencedRedis(client, stale).set(key, "c")


def test_a_write_that_the_driver_repeats_after_a_lost_reply_is_made_once(
    redis_server: RedisServer, proxy: Proxy, client: redis.Redis, guard: Guard, key: str
):
    retry = redis.retry.Retry(redis.backoff.NoBackoff(), 3)
    with closing(redis.Redis(port=proxy.port, retry=retry, retry_on_error=[redis.ConnectionError])) as flaky:
        fenced = FencedRedis(flaky, fence(guard))
        fenced.incrby(key, 1)
        proxy.swallow(2, to=b"EVALSHA")

        assert fenced.incrby(key, 1) == 2
        assert proxy.swallowed == 2
        proxy.swallow(1, to=b"INCRBY")
        flaky.incrby(key, 1)  # and without a fence it is made twice

    assert client.get(key) == b"4"


def test_another_thread_does_not_write_between_a_lost_reply_and_its_repetition(
    proxy: Proxy, client: redis.Redis, guard: Guard, key: str
):
    """Each with a FencedRedis of its own: the mark remembers the last call, and it would not be the lost one."""
    mine = fence(guard)
    other = threading.Thread(target=lambda: FencedRedis(client, mine).incrby(key, 100))

    class Between(redis.backoff.AbstractBackoff):
        def reset(self) -> None: ...

        def compute(self, failures: int) -> float:
            other.start()
            other.join(0.3)
            return 0

    retry = redis.retry.Retry(Between(), 1)
    with closing(redis.Redis(port=proxy.port, retry=retry, retry_on_error=[redis.ConnectionError])) as flaky:
        fenced = FencedRedis(flaky, mine)
        fenced.incrby(key, 1)
        proxy.swallow(1, to=b"EVALSHA")
        fenced.incrby(key, 1)
    other.join(20)

    assert client.get(key) == b"102"


def test_a_write_once_may_be_tried_again_after_a_lost_reply(proxy: Proxy, client: redis.Redis, guard: Guard, key: str):
    retry = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
    with closing(redis.Redis(port=proxy.port, retry=retry)) as flaky:
        credit = FencedRedis(flaky, fence(guard)).once("credit")
        client.script_load("return 1")
        FencedRedis(client, fence(guard)).check("warm")
        flaky.ping()
        proxy.swallow(1, to=b"EVALSHA")
        with pytest.raises(redis.ConnectionError):
            credit.incrby(key, 5)

        assert credit.incrby(key, 5) == 5
    assert client.get(key) == b"5"


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (lambda client, mine: FencedRedis(client.pipeline(), mine), "redis.Redis"),
        (lambda client, mine: FencedRedis(client, mine, resource=""), "resource"),
        (lambda client, mine: FencedRedis(client, mine, keep_for=0), "keep_for"),
        (lambda client, mine: FencedRedis(client, mine).once(""), "name"),
        (lambda client, mine: FencedRedis(client, mine).execute("SET"), "key"),
        (lambda client, mine: FencedRedis(client, mine).set("", 1), "must not be empty: it names"),
        (lambda client, mine: FencedRedis(client, mine).check(), "keys"),
    ],
)
def test_what_cannot_work_is_said(client: redis.Redis, guard: Guard, wrong: Any, hint: str):
    with pytest.raises(ConfigurationError, match=hint):
        wrong(client, fence(guard))
