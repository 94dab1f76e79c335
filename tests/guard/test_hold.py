from __future__ import annotations

import asyncio
import contextvars
import ctypes
import gc
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from taskguard import (
    ConfigurationError,
    DuplicateTaskError,
    Event,
    Guard,
    LeaseLostError,
    StoreError,
    StoreUnavailableError,
    WaitTimeoutError,
    current_fence,
)
from taskguard.protocol.store import Ending, Held, Lease
from taskguard.stores.memory import MemoryStore
from taskguard.testing.contract import ask, claimed
from tests.waiting import wait_until


def kinds(events: list[Event]) -> list[str]:
    return [event.kind for event in events]


def test_the_block_has_the_fence_and_others_are_kept_out(guard: Guard, store: MemoryStore):
    with guard.hold("key") as fence:
        assert fence.key == "key"
        assert fence.starts == 1
        assert 29 < fence.remaining < 30
        assert not fence.lost
        assert not fence.unsure
        assert isinstance(store.claim(ask("other")), Held)
    assert isinstance(store.claim(ask("other")), Lease)


def test_a_key_that_is_held_is_an_error_with_the_facts(guard: Guard, store: MemoryStore):
    lease = claimed(store, "alice")

    with (
        pytest.raises(DuplicateTaskError, match="key is already running .owner alice, since .* UTC") as caught,
        guard.hold("key"),
    ):
        pytest.fail("entered")
    assert not isinstance(caught.value, WaitTimeoutError)
    assert (caught.value.owner, caught.value.token, caught.value.state) == ("alice", lease.token, "running")


def test_waiting_ends_when_the_key_is_free(guard: Guard, store: MemoryStore):
    lease = claimed(store, "alice")
    threading.Timer(0.1, lambda: store.release(lease, Ending(keep_for=60))).start()

    with guard.hold("key", wait_up_to=10) as fence:
        assert fence.token > lease.token


def test_waiting_too_long_is_an_error_that_says_how_long(guard: Guard, store: MemoryStore, events: list[Event]):
    claimed(store, "alice")

    with pytest.raises(WaitTimeoutError, match="raise wait_up_to=") as caught, guard.hold("key", wait_up_to=0.1):
        pytest.fail("entered")
    assert caught.value.waited >= 0.1
    assert kinds(events) == ["duplicate", "wait_timeout"]


def test_waiting_is_no_busy_loop(guard: Guard, store: MemoryStore, monkeypatch: pytest.MonkeyPatch):
    claimed(store, "alice")
    asked = []
    claim = store.claim
    monkeypatch.setattr(store, "claim", lambda request: asked.append(request) or claim(request))

    with pytest.raises(WaitTimeoutError), guard.hold("key", wait_up_to=1):
        pytest.fail("entered")
    assert len(asked) < 60


def test_the_key_is_free_after_an_error(guard: Guard, store: MemoryStore):
    with pytest.raises(ZeroDivisionError), guard.hold("key"):
        raise ZeroDivisionError

    assert isinstance(store.claim(ask("other")), Lease)


def test_a_nested_hold_is_the_same_fence_and_asks_nobody(guard: Guard, monkeypatch: pytest.MonkeyPatch):
    with guard.hold("key") as outer:
        monkeypatch.setattr(guard.store, "claim", lambda request: pytest.fail("asked"))
        with guard.hold("key") as inner:
            assert inner is outer
        assert not outer.lost


def test_a_hold_in_another_thread_is_not_nested(guard: Guard):
    def try_it() -> str:
        with guard.hold("key"):
            return "entered"

    with guard.hold("key"), ThreadPoolExecutor(1) as pool:
        with pytest.raises(DuplicateTaskError):
            pool.submit(try_it).result()
        with pytest.raises(DuplicateTaskError):  # not even with a copy of the context
            pool.submit(contextvars.copy_context().run, try_it).result()


def test_a_hold_in_another_task_is_not_nested(guard: Guard):
    async def try_it() -> None:
        with guard.hold("key"):
            pytest.fail("entered")

    async def main() -> None:
        with guard.hold("key"):
            with pytest.raises(DuplicateTaskError):
                await asyncio.create_task(try_it())
            with guard.hold("key"):
                pass

    asyncio.run(main())


def test_a_hold_on_another_store_is_not_nested(guard: Guard):
    other = Guard(MemoryStore())
    with guard.hold("key") as here, other.hold("key") as there:
        assert here is not there


def test_the_current_fence_is_the_innermost(guard: Guard):
    assert current_fence() is None
    with guard.hold("outer") as outer:
        with guard.hold("inner") as inner:
            assert current_fence() is inner
        assert current_fence() is outer
    assert current_fence() is None


def test_a_fence_is_over_after_its_block(guard: Guard):
    with guard.hold("key") as fence:
        fence.check()

    with pytest.raises(LeaseLostError):
        fence.check()


def test_a_lease_that_was_lost_is_an_error_at_the_end_of_the_block(guard: Guard, store: MemoryStore):
    with pytest.raises(LeaseLostError), guard.hold("key", lease=60):
        store.forget("key")


def test_a_lease_that_was_lost_is_no_error_for_who_wants_to_go_on(guard: Guard, store: MemoryStore):
    with guard.hold("key", lease=60, on_lost="continue"):
        store.forget("key")


def test_an_error_of_the_block_is_not_hidden_by_a_lost_lease(guard: Guard, store: MemoryStore):
    with pytest.raises(ZeroDivisionError), guard.hold("key", lease=60):
        store.forget("key")
        raise ZeroDivisionError


def test_hold_at_least_keeps_others_out_after_the_block(guard: Guard, store: MemoryStore):
    with guard.hold("key", hold_at_least=1):
        pass

    assert isinstance(store.claim(ask("other")), Held)
    wait_until(lambda: isinstance(store.claim(ask("other")), Lease))


def test_hold_at_most_ends_the_renewal(guard: Guard, store: MemoryStore, events: list[Event]):
    with pytest.raises(LeaseLostError), guard.hold("key", lease=0.2, hold_at_most=0.3):
        time.sleep(10)

    assert "it was held as long as hold_at_most allows" in [event.detail for event in events]


def test_hold_at_most_is_not_exceeded_by_a_renewal(guard: Guard, store: MemoryStore):
    with guard.hold("key", lease=0.4, hold_at_most=0.5, on_lost="continue") as fence:
        wait_until(lambda: fence.lost)
        entry = store.get("key")

        assert entry is not None
        assert entry.remaining < 0.05  # by 0.5 s at the latest, not 0.5 s and a lease


@pytest.mark.parametrize(
    "options", [{"lease": -1}, {"lease": "x"}, {"lease": []}, {"wait_up_to": -1}, {"on_lost": "?"}]
)
def test_a_bad_option_is_one_clear_error(guard: Guard, options: dict[str, object]):
    with pytest.raises(ConfigurationError, match=next(iter(options))), guard.hold("key", **options):  # type: ignore[arg-type]
        pytest.fail("entered")


@pytest.mark.parametrize("key", ["", None, 3])
def test_a_key_that_is_no_text_is_one_clear_error(guard: Guard, key: object):
    with pytest.raises(ConfigurationError, match="must be a non-empty string"), guard.hold(key):  # type: ignore[arg-type]
        pytest.fail("entered")


class Unreachable(MemoryStore):
    """Fails a number of times before each answer, after it was carried out: the reply is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.lose = 0

    def _lost(self) -> bool:
        self.lose -= 1
        return self.lose >= 0

    def claim(self, claim):
        answer = super().claim(claim)
        if self._lost():
            raise StoreUnavailableError("store", "reply lost")
        return answer

    def release(self, *args, **options):
        answer = super().release(*args, **options)
        if self._lost():
            raise StoreUnavailableError("store", "reply lost")
        return answer


def test_a_claim_whose_reply_was_lost_is_asked_again():
    store = Unreachable()
    store.lose = 2
    with Guard(store).hold("key") as fence:
        assert fence.starts == 1


def test_a_release_whose_reply_was_lost_is_asked_again():
    store = Unreachable()
    with Guard(store).hold("key"):
        store.lose = 2

    assert isinstance(store.claim(ask("other")), Lease)


def test_a_store_that_stays_silent_is_an_error(events: list[Event]):
    store = Unreachable()
    store.lose = 10**6
    guard = Guard(store, patience=0.1, listeners=[events.append])

    with pytest.raises(StoreUnavailableError), guard.hold("key"):
        pytest.fail("entered")
    assert kinds(events) == ["store_unavailable"]


def test_a_block_is_not_failed_by_a_store_that_is_silent_at_its_end(events: list[Event]):
    store = Unreachable()
    guard = Guard(store, patience=0.1, listeners=[events.append])
    with guard.hold("key", lease=0.1):
        store.lose = 10**6

    assert kinds(events)[-1] == "store_unavailable"


class Unwritable:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __str__(self) -> str:
        raise self.error

    __repr__ = __str__


def test_a_namespace_beside_an_open_store_is_refused_not_ignored():
    with pytest.raises(ConfigurationError, match="goes with a URL"):
        Guard(MemoryStore(), namespace="ignored")


@pytest.mark.parametrize("wrong", [{"store": None}, {"store": 7}, {"patience": "x"}, {"listeners": print}])
def test_a_guard_that_is_made_wrong_is_one_clear_error(wrong: dict[str, object]):
    with pytest.raises(ConfigurationError):
        Guard(**{"store": "memory://", **wrong})  # type: ignore[arg-type]


def test_a_key_that_no_store_can_write_is_refused(guard: Guard):
    with pytest.raises(ConfigurationError, match="surrogate"), guard.hold("a\udcff"):
        pytest.fail("entered")


def test_options_are_checked_in_a_nested_hold_too(guard: Guard):
    with guard.hold("key"), pytest.raises(ConfigurationError, match="lease"), guard.hold("key", lease=-5):
        pytest.fail("entered")


def test_a_store_that_fails_at_the_end_does_not_replace_the_error_of_the_block(events: list[Event]):
    class Fails(MemoryStore):
        def release(self, *args, **options):
            raise StoreError("store", "something foreign is kept there")

    guard = Guard(Fails(), listeners=[events.append])
    with pytest.raises(ZeroDivisionError), guard.hold("key"):
        raise ZeroDivisionError
    assert kinds(events)[-1] == "store_failed"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the alarm may ring in a destructor
def test_a_storm_of_signals_leaves_nothing_that_is_renewed_for_ever(store: MemoryStore):
    class AlarmError(Exception):
        pass

    def ring(*_: object) -> None:
        raise AlarmError

    guard = Guard(store, listeners=[])
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    before = signal.signal(signal.SIGALRM, ring)
    rung = 0
    try:
        for number in range(1500):
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00001, 0.0006))
                with guard.hold(f"key {number}", lease=5):
                    for _ in range(20):
                        time.sleep(0)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except AlarmError:
                rung += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    gc.collect()

    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == masked
    assert rung > 100
    assert guard.heartbeat._holdings.all() == []
    assert current_fence() is None


def test_a_time_out_in_the_middle_of_the_end_does_not_leave_the_key_held(store: MemoryStore):
    class TimeOutError(Exception):
        pass

    def ring(*_: object) -> None:
        raise TimeOutError

    class Torn(MemoryStore):
        asked = 0

        def release(self, *args, **options):
            self.asked += 1
            if self.asked == 1:
                signal.raise_signal(signal.SIGUSR1)  # before anything was done
            return super().release(*args, **options)

    torn = Torn()
    before = signal.signal(signal.SIGUSR1, ring)
    try:
        with pytest.raises(TimeOutError), Guard(torn, listeners=[]).hold("key", lease=60):
            pass
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert torn.asked == 2
    assert isinstance(torn.claim(ask("other")), Lease)


def test_a_time_out_in_the_middle_of_the_end_is_seen_though_the_store_fails_too():
    class TimeOutError(Exception):
        pass

    def ring(*_: object) -> None:
        raise TimeOutError

    class TornThenDown(MemoryStore):
        asked = 0

        def release(self, *args, **options):
            self.asked += 1
            if self.asked == 1:
                signal.raise_signal(signal.SIGUSR1)
            raise StoreUnavailableError("store", "down")

    store = TornThenDown()
    before = signal.signal(signal.SIGUSR1, ring)
    try:
        guard = Guard(store, listeners=[], patience=0.1)
        with pytest.raises(TimeOutError), guard.hold("key", lease=60):
            pass
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert store.asked > 1


def test_an_end_that_two_signals_tear_within_one_call_does_not_leave_the_key_held():
    class TimeOutError(Exception):
        pass

    def ring(*_: object) -> None:
        raise TimeOutError

    class Torn(MemoryStore):
        asked = 0

        def release(self, *args, **options):
            self.asked += 1
            if self.asked == 1:
                # By C code alone, so that both arrive within the last of the calls. `os.stat` of Python 3.10 goes on
                # after the first handler has raised, and a SystemError is what then comes of the second.
                arrive = ctypes.pythonapi.PyErr_SetInterruptEx
                signals = [partial(arrive, int(number)) for number in (signal.SIGUSR1, signal.SIGUSR2)]
                list(map(partial.__call__, [*signals, partial(os.stat, os.curdir)]))
            return super().release(*args, **options)

    torn = Torn()
    before = signal.signal(signal.SIGUSR1, ring), signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        with pytest.raises((TimeOutError, SystemError)), Guard(torn, listeners=[]).hold("key", lease=60):
            pass
    finally:
        signal.signal(signal.SIGUSR1, before[0])
        signal.signal(signal.SIGUSR2, before[1])

    assert torn.asked == 2
    assert isinstance(torn.claim(ask("other")), Lease)
