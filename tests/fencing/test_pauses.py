"""A holder that is stopped between its check and its write, past its lease, while another completes; and wakes."""

from __future__ import annotations

import random
import threading
import time
from contextlib import closing
from typing import Any, Literal
from uuid import uuid4

import pytest

from taskguard import Guard, LeaseLostError, StaleFenceError
from taskguard.fence import Fence
from taskguard.fencing.updates import fenced_update
from tests.fencing.databases import Client, connect
from tests.fencing.forked import Forked
from tests.servers import RedisServer

LEASE = 0.15
LONGEST_PAUSE = 0.012


How = Literal["protect", "column", "nothing"]
GUARDED: tuple[How, ...] = ("protect", "column")
"""A row of ours, or a column of the account itself."""


def write(fence: Fence, url: str, how: How, *, pause: Any = lambda: None) -> str:
    """The account shows the token of whoever wrote last."""
    client = connect(url)
    with closing(client):
        try:
            pause()
            with client.transaction() as tx:
                if how == "protect":
                    fence.protect(tx)
                pause()
                if how == "column":
                    fenced_update(fence, tx, "account", "cents = :token", "id = 'one'", {"token": fence.token})
                else:
                    client.execute("UPDATE account SET cents = ? WHERE id = 'one'", fence.token)
                pause()
        except StaleFenceError:
            return "refused"
    return "written"


def last_writer(client: Client) -> int:
    with client.transaction():
        return int(client.execute("SELECT cents FROM account WHERE id = 'one'")[0][0])


def scene(store: str, url: str, key: str, how: How, *, pause: Any) -> Any:
    def holder(tell: Any, hear: Any) -> None:
        guard = Guard(store)
        with guard.hold(key, lease=LEASE, on_lost="continue") as fence:
            check(fence)
            tell("checked")
            hear()
            tell([fence.token, write(fence, url, how, pause=pause)])

    return holder


def check(fence: Fence) -> None:
    """As soon as the store can answer within the lease, which on a busy machine takes more than one try."""
    while True:
        try:
            fence.check()
        except LeaseLostError as error:
            if not error.unsure:
                raise
        else:
            return


def successor(guard: Guard, url: str, key: str, how: How) -> int:
    with guard.hold(key, lease=30, wait_up_to=30) as fence:
        assert write(fence, url, how) == "written"
        return fence.token


def stopped_before_it_writes(store: str, url: str, how: How) -> tuple[int, int, str]:
    """The token of the one who was stopped, that of its successor, and what became of the first one's write."""
    key = uuid4().hex
    with closing(Forked(scene(store, url, key, how, pause=lambda: None))) as sleeper:
        assert sleeper.hear() == "checked"
        sleeper.stop()
        token = successor(Guard(store), url, key, how)
        sleeper.wake()
        sleeper.tell("go on")
        first, became = sleeper.hear()
    return first, token, became


def stopped_anywhere(store: str, url: str, how: How, dice: random.Random) -> tuple[int, int, str]:
    """The same, stopped at a random moment: before its transaction, in it, or after it."""
    key = uuid4().hex
    seed = dice.random()

    def pause() -> None:
        time.sleep(own.uniform(0, LONGEST_PAUSE))

    own = random.Random(seed)
    with closing(Forked(scene(store, url, key, how, pause=pause))) as sleeper:
        assert sleeper.hear() == "checked"
        sleeper.tell("go on")
        time.sleep(dice.uniform(0, 3 * LONGEST_PAUSE))
        sleeper.stop()
        tokens: list[int] = []
        guard = Guard(store)
        other = threading.Thread(target=lambda: tokens.append(successor(guard, url, key, how)))
        other.start()
        other.join(LEASE + dice.uniform(0.1, 0.3))  # it waits longer only if the first is stopped in its transaction
        sleeper.wake()
        first, became = sleeper.hear()
        other.join(30)
    return first, tokens[0], became


@pytest.fixture
def store(redis_server: RedisServer) -> str:
    """Not a file: a process that is stopped while it renews would keep the file for itself."""
    return redis_server.url


@pytest.mark.parametrize("how", GUARDED)
def test_the_one_who_was_stopped_is_refused(url: str, plain: Client, store: str, how: How):
    first, second, became = stopped_before_it_writes(store, url, how)

    assert first < second
    assert became == "refused"
    assert last_writer(plain) == second


def test_without_protection_its_write_is_the_last_one(url: str, plain: Client, store: str):
    """What all of this is for; and the proof that the other tests would see it."""
    first, _, became = stopped_before_it_writes(store, url, "nothing")

    assert became == "written"
    assert last_writer(plain) == first


def repeat(times: int, url: str, plain: Client, store: str, how: How) -> None:
    dice = random.Random()
    for _ in range(times):
        first, second, became = stopped_anywhere(store, url, how, dice)
        assert first < second
        assert last_writer(plain) == second, became


def test_whenever_it_is_stopped_the_successor_writes_last(url: str, plain: Client, store: str):
    repeat(10, url, plain, store, "protect")


def test_so_it_is_with_a_column_of_the_account(url_of: Any, open_client: Any, store: str):
    url = url_of("postgresql")
    repeat(10, url, open_client(url), store, "column")


@pytest.mark.faults
@pytest.mark.parametrize("how", GUARDED)
def test_whenever_it_is_stopped_the_successor_writes_last_200_times(url: str, plain: Client, store: str, how: How):
    repeat(200, url, plain, store, how)
