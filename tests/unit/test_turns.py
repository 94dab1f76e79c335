"""Turns are taken in the order in which they were asked for."""

from __future__ import annotations

import threading
import time
from typing import Any

from taskguard.runtime import native
from taskguard.stores.turns import Turns
from tests.waiting import wait_until


def test_who_comes_back_at_once_does_not_overtake_who_waits():
    turns, order = Turns(1), []

    def take(name: str, until: Any) -> None:
        turn = native.allocate_lock()
        with turn:
            assert turns.wait(turn, time.monotonic() + 20)
            order.append(name)
            until()

    gate = threading.Event()
    threads = [threading.Thread(target=take, args=("first", gate.wait))]
    threads[0].start()
    wait_until(lambda: order == ["first"])
    for name in ("second", "third"):
        threads.append(threading.Thread(target=take, args=(name, lambda: None)))
        threads[-1].start()
        wait_until(lambda: len(turns._taken) == len(threads))
    gate.set()
    for thread in threads:
        thread.join(20)

    assert order == ["first", "second", "third"]


def test_who_gives_up_leaves_the_line():
    turns = Turns(1)
    mine, other = native.allocate_lock(), native.allocate_lock()
    with mine:
        assert turns.wait(mine, time.monotonic())
        given_up = []

        def give_up() -> None:
            with other:
                given_up.append(turns.wait(other, time.monotonic() + 0.01))

        thread = threading.Thread(target=give_up)
        thread.start()
        thread.join(20)

    assert given_up == [False] and len(turns._taken) == 1
