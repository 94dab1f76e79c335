"""A holder that is stopped between its check and its write, past its lease, while another completes; and wakes."""

from __future__ import annotations

import random
import threading
import time
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest

from taskguard import Guard, LeaseLostError, StaleFenceError
from taskguard.fence import Fence
from tests.fencing.databases import Client, connect
from tests.fencing.forked import Forked
from tests.servers import RedisServer

LEASE = 0.15
LONGEST_PAUSE = 0.012


def write(fence: Fence, url: str, *, protected: bool, pause: Any = lambda: None) -> str:
    """The account shows the token of whoever wrote last."""
    client = connect(url)
    with closing(client):
        try:
            pause()
            with client.transaction() as tx:
                if protected:
                    fence.protect(tx)
                pause()
                client.execute("UPDATE account SET cents = ? WHERE id = 'one'", fence.token)
                pause()
        except StaleFenceError:
            return "refused"
    return "written"


def last_writer(client: Client) -> int:
    with client.transaction():
        return int(client.execute("SELECT cents FROM account WHERE id = 'one'")[0][0])


def scene(store: str, url: str, key: str, *, protected: bool, pause: Any) -> Any:
    def holder(tell: Any, hear: Any) -> None:
        guard = Guard(store)
        with guard.hold(key, lease=LEASE, on_lost="continue") as fence:
            check(fence)
            tell("checked")
            hear()
            tell([fence.token, write(fence, url, protected=protected, pause=pause)])

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


def successor(guard: Guard, url: str, key: str, *, protected: bool) -> int:
    with guard.hold(key, lease=30, wait_up_to=30) as fence:
        assert write(fence, url, protected=protected) == "written"
        return fence.token


def stopped_before_it_writes(store: str, url: str, *, protected: bool) -> tuple[int, int, str]:
    """The token of the one who was stopped, that of its successor, and what became of the first one's write."""
    key = uuid4().hex
    with closing(Forked(scene(store, url, key, protected=protected, pause=lambda: None))) as sleeper:
        assert sleeper.hear() == "checked"
        sleeper.stop()
        token = successor(Guard(store), url, key, protected=protected)
        sleeper.wake()
        sleeper.tell("go on")
        first, became = sleeper.hear()
    return first, token, became


def stopped_anywhere(store: str, url: str, dice: random.Random) -> tuple[int, int, str]:
    """The same, stopped at a random moment: before its transaction, in it, or after it."""
    key = uuid4().hex
    seed = dice.random()

    def pause() -> None:
        time.sleep(own.uniform(0, LONGEST_PAUSE))

    own = random.Random(seed)
    with closing(Forked(scene(store, url, key, protected=True, pause=pause))) as sleeper:
        assert sleeper.hear() == "checked"
        sleeper.tell("go on")
        time.sleep(dice.uniform(0, 3 * LONGEST_PAUSE))
        sleeper.stop()
        tokens: list[int] = []
        guard = Guard(store)
        other = threading.Thread(target=lambda: tokens.append(successor(guard, url, key, protected=True)))
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


def test_the_one_who_was_stopped_is_refused(url: str, plain: Client, store: str):
    first, second, became = stopped_before_it_writes(store, url, protected=True)

    assert first < second
    assert became == "refused"
    assert last_writer(plain) == second


def test_without_protection_its_write_is_the_last_one(url: str, plain: Client, store: str):
    """What all of this is for; and the proof that the other tests would see it."""
    first, _, became = stopped_before_it_writes(store, url, protected=False)

    assert became == "written"
    assert last_writer(plain) == first


def repeat(times: int, url: str, plain: Client, store: str) -> None:
    dice = random.Random()
    for _ in range(times):
        first, second, became = stopped_anywhere(store, url, dice)
        assert first < second
        assert last_writer(plain) == second, became


def test_whenever_it_is_stopped_the_successor_writes_last(url: str, plain: Client, store: str):
    repeat(10, url, plain, store)


@pytest.mark.faults
def test_whenever_it_is_stopped_the_successor_writes_last_200_times(url: str, plain: Client, store: str):
    repeat(200, url, plain, store)
