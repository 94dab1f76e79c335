"""A store that was asked in vain is left alone for a moment, which grows; then one call asks, for all others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from taskguard import StoreError, StoreUnavailableError
from taskguard.runtime import breaker
from taskguard.runtime.breaker import FIRST, LONGEST, PROBE, Breaker
from tests.waiting import wait_until


class Clock:
    """Stands still until it is told otherwise."""

    now = 0.0

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(breaker, "since_boot", lambda: made.now)
    return made


class Store:
    """Asked through the breaker; it does not answer."""

    def __init__(self) -> None:
        self.breaker = Breaker()
        self.asked = 0

    def fail(self) -> Any:
        self.asked += 1
        raise StoreUnavailableError("redis://host", "connection refused")

    def was_asked(self, question: Any = None) -> bool:
        before = self.asked
        with pytest.raises(StoreUnavailableError):
            self.breaker.ask(question or self.fail)
        return self.asked > before


@pytest.fixture
def store() -> Store:
    return Store()


def test_the_calls_after_one_in_vain_do_not_ask(store: Store):
    assert store.was_asked()
    assert not store.was_asked()
    with pytest.raises(StoreUnavailableError, match=r"redis://host: connection refused \(taskguard retries in 2.0 s\)"):
        store.breaker.ask(store.fail)


def test_a_pause_is_twice_as_long_as_the_one_before_up_to_the_longest(store: Store, now: Clock):
    lengths = []
    for _ in range(6):
        assert store.was_asked()
        lengths.append(store.breaker._pause.length)
        now.advance(lengths[-1] - 0.01)
        assert not store.was_asked()
        now.advance(0.01)

    assert lengths == [FIRST, 4.0, 8.0, 16.0, LONGEST, LONGEST]


def test_after_an_answer_every_call_asks(store: Store, now: Clock):
    for _ in range(2):
        assert store.was_asked()
        now.advance(LONGEST)
    assert store.breaker.ask(lambda: "answer") == "answer"
    assert store.breaker.ask(lambda: "answer") == "answer"
    assert store.was_asked()

    assert store.breaker._pause.length == FIRST


def test_a_refusal_is_an_answer(store: Store, now: Clock):
    def refuse() -> Any:
        raise StoreError("redis://host", "a wrong password")

    assert store.was_asked()
    now.advance(FIRST)
    for _ in range(2):
        with pytest.raises(StoreError, match="wrong password"):
            store.breaker.ask(refuse)


def test_calls_that_fail_together_count_as_one(store: Store):
    together = threading.Barrier(8, timeout=20)

    def fail() -> Any:
        together.wait()
        return store.fail()

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(lambda _: store.was_asked(fail), range(8)))

    assert store.breaker._pause.length == FIRST


def test_after_a_pause_one_thread_asks_and_the_others_do_not_wait_for_it(store: Store, now: Clock):
    assert store.was_asked()
    now.advance(FIRST)
    others_are_through = threading.Event()

    def probe() -> Any:
        assert others_are_through.wait(20)
        return store.fail()

    with ThreadPoolExecutor(8) as threads:
        calls = [threads.submit(store.was_asked, probe) for _ in range(8)]
        wait_until(lambda: sum(call.done() for call in calls) == 7)
        others_are_through.set()

    assert [call.result() for call in calls].count(True) == 1 and store.breaker._pause.length == 2 * FIRST


def test_a_call_that_a_signal_ends_leaves_the_question_to_another(store: Store, now: Clock):
    assert store.was_asked()
    now.advance(FIRST)

    def interrupted() -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.breaker.ask(interrupted)
    assert not store.was_asked()
    now.advance(PROBE + 0.01)
    assert store.was_asked()


def test_a_signal_handler_may_call_while_the_store_is_asked(store: Store, now: Clock):
    assert store.was_asked()
    now.advance(FIRST)
    within: list[bool] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: within.append(store.was_asked()))

    def probe() -> Any:
        os.kill(os.getpid(), signal.SIGUSR1)
        return store.fail()

    try:
        assert store.was_asked(probe)
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert within == [False] and store.breaker._pause.length == 2 * FIRST


def test_a_forked_child_goes_on_with_what_its_parent_knew(store: Store, now: Clock):
    assert store.was_asked()
    child = os.fork()
    if not child:
        early = store.was_asked()
        now.advance(FIRST)
        os._exit(0 if not early and store.was_asked() else 1)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    now.advance(FIRST)
    assert store.was_asked() and store.breaker._pause.length == 2 * FIRST  # and counts for itself


GREENLETS = """
import gevent.monkey
gevent.monkey.patch_all()
import gevent, time
from taskguard import StoreUnavailableError
from taskguard.runtime import breaker

breaker.FIRST = 0.0
circuit, asked = breaker.Breaker(), []

def fail():
    asked.append(1)
    time.sleep(0.01)  # the others' turn
    raise StoreUnavailableError("store", "away")

def call():
    try:
        circuit.ask(fail)
    except StoreUnavailableError:
        pass

call()
del asked[:]
gevent.joinall([gevent.spawn(call) for _ in range(50)])
print(len(asked))
"""


def test_after_a_pause_one_greenlet_asks():
    done = subprocess.run([sys.executable, "-c", GREENLETS], capture_output=True, text=True, timeout=60)

    assert done.stdout == "1\n", done.stderr
