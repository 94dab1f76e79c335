"""A body that lost its lease is told, wherever it runs and whatever it waits for."""

from __future__ import annotations

import asyncio
import pickle
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from taskguard import Guard, LeaseLostError
from taskguard.runtime import interrupt
from taskguard.stores.memory import MemoryStore
from tests.waiting import wait_until

LEASE = 0.3


def sleeping() -> None:
    time.sleep(20)


def receiving() -> None:
    one, other = socket.socketpair()
    with one, other:
        one.recv(1)


def selecting() -> None:
    select.select([], [], [], 20)


def locked() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire(timeout=20)


def queueing() -> None:
    queue.Queue().get(timeout=20)


def waiting_for_a_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(20)"]) as child:
        try:
            child.wait()
        finally:
            child.kill()


def computing() -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        pass


BLOCKING = [sleeping, receiving, selecting, locked, queueing, waiting_for_a_process, computing]


@pytest.mark.parametrize("body", BLOCKING, ids=lambda body: body.__name__)
def test_the_main_thread_is_interrupted_whatever_it_waits_for(
    guard: Guard, store: MemoryStore, body: Callable[[], None]
):
    started = time.monotonic()

    with pytest.raises(LeaseLostError) as caught, guard.hold("key", lease=LEASE) as fence:
        store.forget("key")
        body()
    assert (caught.value.key, caught.value.token, caught.value.unsure) == ("key", fence.token, False)
    assert time.monotonic() - started < 10


def test_another_thread_is_interrupted_at_its_next_step(guard: Guard, store: MemoryStore):
    caught: list[BaseException] = []

    def body() -> None:
        try:
            with guard.hold("key", lease=LEASE):
                store.forget("key")
                while True:
                    time.sleep(0.01)
        except LeaseLostError as error:
            caught.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join(20)

    (error,) = caught
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is LeaseLostError
    assert copy.args == error.args
    assert copy.key == "key"


def test_only_the_body_that_lost_its_lease_is_interrupted(guard: Guard, store: MemoryStore):
    ended: list[str] = []

    def body(key: str) -> None:
        try:
            with guard.hold(key, lease=LEASE):
                until = time.monotonic() + 1.5
                while time.monotonic() < until:
                    time.sleep(0.01)
            ended.append(f"{key} finished")
        except LeaseLostError:
            ended.append(f"{key} lost")

    threads = [threading.Thread(target=body, args=(key,)) for key in ("one", "other")]
    for thread in threads:
        thread.start()
    wait_until(lambda: store.get("one") and store.get("other"))
    store.forget("one")
    for thread in threads:
        thread.join(20)

    assert ended == ["one lost", "other finished"]


def test_the_outer_of_two_bodies_in_one_thread_can_be_interrupted(guard: Guard, store: MemoryStore):
    with pytest.raises(LeaseLostError) as caught, guard.hold("outer", lease=LEASE), guard.hold("inner", lease=60):
        store.forget("outer")
        time.sleep(20)
    assert caught.value.key == "outer"


@pytest.mark.parametrize("in_thread", [False, True])
def test_of_two_bodies_that_both_lost_their_lease_the_outer_one_is_told(
    guard: Guard, store: MemoryStore, in_thread: bool
):
    told: list[str] = []

    def body() -> None:
        try:
            with guard.hold("outer", lease=LEASE):
                try:
                    with guard.hold("inner", lease=LEASE):
                        store.forget("outer")
                        store.forget("inner")
                        until = time.monotonic() + 10
                        while time.monotonic() < until:
                            time.sleep(0.01)
                except LeaseLostError as error:
                    if error.key == "outer":
                        raise
                    told.append(f"within: {error.key}")
                    until = time.monotonic() + 10
                    while time.monotonic() < until:  # if only the inner one was told, the outer one must be, too
                        time.sleep(0.01)
        except LeaseLostError as error:
            told.append(f"outside: {error.key}")

    for _ in range(5):
        told.clear()
        if in_thread:
            thread = threading.Thread(target=body)
            thread.start()
            thread.join(20)
        else:
            body()
        assert told in (["within: inner", "outside: outer"], ["outside: outer"])


def test_a_task_is_interrupted_and_no_other(guard: Guard, store: MemoryStore):
    async def loses() -> None:
        with guard.hold("lost", lease=LEASE):
            store.forget("lost")
            await asyncio.sleep(20)

    async def keeps() -> str:
        with guard.hold("kept", lease=LEASE):
            await asyncio.sleep(1)
        return "kept"

    async def main() -> list[object]:
        return await asyncio.gather(loses(), keeps(), return_exceptions=True)

    lost, kept = asyncio.run(main())
    assert isinstance(lost, LeaseLostError)
    assert kept == "kept"


def test_a_time_out_that_arrives_while_a_listener_runs_is_not_swallowed(store: MemoryStore):
    class TimeOutError(Exception):
        pass

    def ring(*_: object) -> None:
        raise TimeOutError

    guard = Guard(store, listeners=[lambda event: signal.raise_signal(signal.SIGUSR1)])
    before = signal.signal(signal.SIGUSR1, ring)
    try:
        with pytest.raises(TimeOutError), guard.hold("key"):
            pass
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_nobody_is_interrupted_who_wants_to_go_on(guard: Guard, store: MemoryStore):
    with guard.hold("key", lease=LEASE, on_lost="continue") as fence:
        store.forget("key")
        wait_until(lambda: fence.lost)
        time.sleep(0.05)


@pytest.mark.parametrize("enter", [interrupt._InMainThread, interrupt._InThread])
def test_nothing_is_raised_once_the_body_was_left(enter: Callable[[], interrupt.Body]):
    body = enter()
    body.leave()
    body.interrupt(LeaseLostError("key", 1))
    for _ in range(1000):
        time.sleep(0)


@pytest.mark.parametrize("enter", [interrupt._InMainThread, interrupt._InThread])
def test_an_interruption_arrives_in_the_body_or_not_at_all(enter: Callable[[], interrupt.Body]):
    outside = 0
    for number in range(300):
        body = enter()
        sender = threading.Timer(number % 7 * 0.0001, body.interrupt, [LeaseLostError("key", number)])
        try:
            try:
                sender.start()
                for _ in range(number % 50):
                    time.sleep(0)
            finally:
                body.leave()
        except LeaseLostError:
            body.leave()  # as the guard does: the way out itself may have been hit
        try:
            sender.join()
            for _ in range(10):
                time.sleep(0)
        except LeaseLostError:
            outside += 1
    assert outside == 0


def test_a_handler_that_was_there_before_is_still_called(guard: Guard, store: MemoryStore):
    called = []
    before = signal.signal(signal.SIGURG, lambda *_: called.append(1))
    try:
        with guard.hold("key"):
            signal.raise_signal(signal.SIGURG)
        assert called == [1]
    finally:
        signal.signal(signal.SIGURG, before)


GREENLETS = """
import gevent.monkey
gevent.monkey.patch_all()
import sys, time
import gevent
from taskguard import Guard, LeaseLostError

guard = Guard(sys.argv[1], namespace="gevent test")
told = []

def loses():
    try:
        with guard.hold("lost", lease=0.6):
            guard.store.forget("lost")
            gevent.sleep(20)
    except LeaseLostError as error:
        told.append(error.key)

def keeps():
    with guard.hold("kept", lease=0.6) as fence:
        gevent.sleep(1.5)
        fence.check()
        told.append("kept")

def computes():
    with guard.hold("computed", lease=0.6) as fence:
        until = time.monotonic() + 2
        while time.monotonic() < until:  # never yields to the hub
            pass
        assert fence.remaining > 0, fence.remaining
        told.append("computed")

gevent.joinall([gevent.spawn(loses), gevent.spawn(keeps)], timeout=20, raise_error=True)
gevent.joinall([gevent.spawn(computes)], timeout=20, raise_error=True)
print(sorted(told))
"""


@pytest.mark.parametrize("kind", ["redis", "sqlite", "postgresql"])
def test_greenlets_are_renewed_while_they_compute_and_interrupted_while_they_wait(
    kind: str, request: pytest.FixtureRequest, tmp_path
):
    fixtures = {"redis": "redis_server", "postgresql": "postgres_server"}
    url = f"sqlite:///{tmp_path / 'taskguard.db'}"
    if kind in fixtures:
        url = request.getfixturevalue(fixtures[kind]).url
    done = subprocess.run([sys.executable, "-c", GREENLETS, url], capture_output=True, text=True, timeout=60)

    assert done.stdout == "['computed', 'kept', 'lost']\n", done.stderr
