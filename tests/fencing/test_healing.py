"""A resource that has seen a higher token than the store knows of: the store lost its data, the next token heals."""

from __future__ import annotations

from types import SimpleNamespace
from uuid import uuid4

import pytest

from taskguard import Guard, StaleFenceError
from taskguard.fence import Fence
from taskguard.fencing.high_water import protect
from taskguard.protocol.store import TOKEN_LIMIT, Claim, Lease
from tests.fencing.databases import Client
from tests.servers import RedisServer

AHEAD = 2**52 + 7
"""A mark above all tokens that a clock makes these days: as if it had been made by a store whose clock was ahead."""


def raise_mark(client: Client, resource: str, token: int = AHEAD) -> None:
    with client.transaction() as tx:
        protect(SimpleNamespace(key="", token=token), tx, resource)  # type: ignore[arg-type]


def test_work_is_begun_again_under_a_token_that_the_resource_takes(plain: Client, guard: Guard):
    raise_mark(plain, "key")
    tokens = []

    def work(fence: Fence) -> str:
        tokens.append(fence.token)
        with plain.transaction() as tx:
            fence.protect(tx)
        return "done"

    assert guard.run("key", work, keep_for=60) == "done"
    assert len(tokens) == 2 and tokens[0] < AHEAD < tokens[1]


def test_a_block_fails_once_and_whoever_holds_the_key_next_has_a_higher_token(plain: Client, redis_server: RedisServer):
    key = uuid4().hex
    raise_mark(plain, key)
    first, elsewhere = Guard(redis_server.url), Guard(redis_server.url)
    with pytest.raises(StaleFenceError) as refused, first.hold(key) as fence, plain.transaction() as tx:
        fence.protect(tx)
    assert refused.value.mark == AHEAD
    with elsewhere.hold(key) as fence, plain.transaction() as tx:
        fence.protect(tx)
        assert fence.token > AHEAD


def test_a_run_that_was_replaced_is_not_begun_again(plain: Client, guard: Guard):
    runs = []

    def work(fence: Fence) -> None:
        runs.append(fence.token)
        guard.store.forget("key")
        newer = guard.store.claim(Claim("key", "another", "attempt", lease=30, keep_for=60))
        assert isinstance(newer, Lease)
        raise_mark(plain, "key", newer.token)
        with plain.transaction() as tx:
            fence.protect(tx)

    with pytest.raises(StaleFenceError):
        guard.run("key", work, keep_for=60, on_lost="continue")
    assert len(runs) == 1
    entry = guard.store.get("key")
    assert entry is not None and entry.owner == "another"


def test_a_mark_that_is_no_token_cannot_be_healed_and_says_so(plain: Client, guard: Guard):
    raise_mark(plain, "key", TOKEN_LIMIT)

    def work(fence: Fence) -> None:
        with plain.transaction() as tx:
            fence.protect(tx)

    with pytest.raises(StaleFenceError, match="set it to 0"):
        guard.run("key", work, keep_for=60)


def test_a_resource_of_two_keys_is_written_by_each_in_turn(plain: Client, guard: Guard):
    """Tokens of two keys come in the order in which they were granted: the older one is begun again."""
    done = []

    def older(fence: Fence) -> None:
        with guard.hold("younger") as younger, plain.transaction() as tx:
            if not done:
                younger.protect(tx, "account")
        done.append(fence.token)
        with plain.transaction() as tx:
            fence.protect(tx, "account")

    guard.run("older", older, keep_for=60)
    assert len(done) == 2
