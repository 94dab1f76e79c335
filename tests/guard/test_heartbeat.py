from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest

from taskguard import Event, Guard, LeaseLostError, StoreError, StoreUnavailableError
from taskguard.protocol.store import Held, Lease
from taskguard.runtime import alarm
from taskguard.runtime.clocks import since_boot
from taskguard.runtime.heartbeat import Heartbeat, Holding
from taskguard.stores.memory import MemoryStore
from taskguard.testing.contract import ask, claimed
from tests.children import in_fork
from tests.waiting import wait_until


class WatchedStore(MemoryStore):
    """Remembers its renewals, and fails or hangs on them when told."""

    def __init__(self) -> None:
        super().__init__()
        self.renewals: list[int] = []
        self.error: Exception | None = None
        self.hangs = threading.Event()
        self.hangs.set()

    def renew(self, leases: Sequence[tuple[Lease, float]], /) -> list[bool]:
        self.renewals.append(len(leases))
        assert self.hangs.wait(20)
        if self.error is not None:
            raise self.error
        return super().renew(leases)


@pytest.fixture
def store() -> WatchedStore:
    return WatchedStore()


def test_a_lease_is_renewed_as_long_as_it_is_held(guard: Guard, store: WatchedStore):
    with guard.hold("key", lease=0.3) as fence:
        wait_until(lambda: len(store.renewals) >= 6)  # two leases long

        assert fence.remaining > 0
        assert isinstance(store.claim(ask("other")), Held)
    done = len(store.renewals)
    with guard.hold("other key", lease=0.3):
        wait_until(lambda: len(store.renewals) >= done + 2)
    assert set(store.renewals[done:]) == {1}  # the first is not renewed any more


def test_leases_that_are_due_are_renewed_in_one_call(store: WatchedStore):
    beat = Heartbeat(store, lambda *_: None)
    asked, holdings = since_boot(), []
    for number in range(50):
        holdings.append(Holding(claimed(store, "alice", str(number)), seconds=0.6, asked=asked))
        beat.add(holdings[-1])

    wait_until(lambda: 50 in store.renewals)
    for holding in holdings:
        beat.drop(holding)


def test_a_shorter_lease_is_not_forgotten_behind_a_longer_one(guard: Guard, store: WatchedStore):
    with guard.hold("long", lease=60), guard.hold("short", lease=0.3) as fence:
        wait_until(lambda: len(store.renewals) >= 4)
        assert fence.remaining > 0


@pytest.mark.parametrize("error", [StoreUnavailableError("store", "down"), RuntimeError("a bug")])
def test_renewal_survives_errors(guard: Guard, store: WatchedStore, events: list[Event], error: Exception):
    with guard.hold("key", lease=1) as fence:
        store.error = error
        wait_until(lambda: len(store.renewals) >= 3)
        store.error = None
        tried = len(store.renewals)
        wait_until(lambda: len(store.renewals) >= tried + 2)

        assert fence.remaining > 0
        assert not fence.lost
    assert "renewal_failed" in [event.kind for event in events]


def test_a_lease_is_unsure_not_lost_while_the_store_is_silent(guard: Guard, store: WatchedStore, events: list[Event]):
    with guard.hold("key", lease=0.3) as fence:
        store.error = StoreUnavailableError("store", "down")
        wait_until(lambda: "unsure" in [event.kind for event in events])

        assert fence.unsure
        assert not fence.lost
        with pytest.raises(LeaseLostError) as caught:
            fence.check()
        assert caught.value.unsure
        store.error = None
        wait_until(lambda: not fence.unsure)
        fence.check()


def test_a_body_that_wants_to_is_aborted_when_it_is_unsure(guard: Guard, store: WatchedStore):
    store.error = StoreUnavailableError("store", "down")

    with pytest.raises(LeaseLostError) as caught, guard.hold("key", lease=0.3, on_lost="abort_if_unsure"):
        time.sleep(20)
    assert caught.value.unsure


def test_a_body_is_aborted_when_it_is_unsure_though_the_store_hangs(guard: Guard, store: WatchedStore):
    store.hangs.clear()
    started = time.monotonic()

    try:
        with pytest.raises(LeaseLostError) as caught, guard.hold("key", lease=0.5, on_lost="abort_if_unsure"):
            time.sleep(20)
    finally:
        store.hangs.set()
    assert caught.value.unsure
    assert time.monotonic() - started < 10


def test_a_body_is_not_aborted_by_default_while_it_is_unsure(guard: Guard, store: WatchedStore):
    with guard.hold("key", lease=0.2) as fence:
        store.error = StoreUnavailableError("store", "down")
        wait_until(lambda: fence.unsure)
        tried = len(store.renewals)
        wait_until(lambda: len(store.renewals) > tried + 2)
        store.error = None


def test_a_lost_lease_is_told_with_its_facts(guard: Guard, store: WatchedStore, events: list[Event]):
    with pytest.raises(LeaseLostError), guard.hold("key", lease=0.3) as fence:
        store.forget("key")
        time.sleep(20)

    lost = next(event for event in events if event.kind == "lost")
    assert (lost.key, lost.owner, lost.token) == ("key", fence.owner, fence.token)


def test_an_end_that_crosses_a_renewal_on_its_way_is_not_a_loss(store: WatchedStore, events: list[Event]):
    guard = Guard(store, listeners=[events.append])
    with guard.hold("key", lease=0.3):
        store.hangs.clear()
        asked = len(store.renewals)
        wait_until(lambda: len(store.renewals) > asked)
    store.hangs.set()
    with guard.hold("next", lease=0.3):
        asked = len(store.renewals)
        wait_until(lambda: len(store.renewals) > asked)

    assert "lost" not in [event.kind for event in events]


def test_check_asks_the_store_once_the_validity_is_over(guard: Guard, store: WatchedStore):
    with guard.hold("key", lease=60) as fence:
        fence.check()
        assert store.renewals == []
        fence._holding.valid_until = since_boot() - 1  # as after a long pause

        fence.check()
        assert store.renewals == [1]
        assert fence.remaining > 0


def test_a_forked_child_does_not_renew_its_parents_leases(guard: Guard, store: WatchedStore):
    def in_child() -> tuple[int, bool]:
        store.renewals.clear()
        with guard.hold("the child's own", lease=0.3):
            wait_until(lambda: len(store.renewals) >= 3)
        return max(store.renewals), not guard.heartbeat._all()

    with guard.hold("key", lease=0.3):
        wait_until(lambda: store.renewals)

        assert in_fork(in_child) == (1, True)
        before = len(store.renewals)
        wait_until(lambda: len(store.renewals) > before)


def test_the_thread_ends_with_nothing_to_do_and_starts_again(
    guard: Guard, store: WatchedStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(alarm, "IDLE", 0.05)
    for _ in range(2):
        with guard.hold("key", lease=0.3):
            before = len(store.renewals)
            wait_until(lambda b=before: len(store.renewals) > b)
        wait_until(lambda: not guard.heartbeat._renewer.is_running)


def test_a_thread_that_could_not_be_started_is_started_with_the_next_lease(
    guard: Guard, store: WatchedStore, monkeypatch: pytest.MonkeyPatch
):
    def fails(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(alarm.native, "start_thread", fails)
        with pytest.raises(RuntimeError), guard.hold("key"):
            pytest.fail("entered")
    assert isinstance(store.claim(ask("other")), Lease)  # and the key was given back
    with guard.hold("next", lease=0.3):
        wait_until(lambda: store.renewals)


def test_a_listener_that_wants_to_exit_does_not_end_the_renewal(store: WatchedStore):
    def exits(event: Event) -> None:
        if event.kind == "renewal_failed":
            raise SystemExit

    guard = Guard(store, listeners=[exits])
    with guard.hold("key", lease=1):
        store.error = StoreUnavailableError("store", "down")
        wait_until(lambda: store.renewals)
        store.error = None
        tried = len(store.renewals)
        wait_until(lambda: len(store.renewals) > tried + 1)


def test_an_outage_is_told_once_for_each_lease(guard: Guard, store: WatchedStore, events: list[Event]):
    with guard.hold("key", lease=1):
        store.error = StoreUnavailableError("store", "down")
        wait_until(lambda: len(store.renewals) >= 6)
        store.error = None
    assert [event.kind for event in events].count("renewal_failed") == 1


def test_one_key_that_cannot_be_renewed_does_not_stop_the_others(guard: Guard, store: WatchedStore):
    renew = store.renew

    def poisoned(leases: Sequence[tuple[Lease, float]], /) -> list[bool]:
        if any(lease.key == "poison" for lease, _ in leases):
            raise StoreError("store", "something foreign is kept there")
        return renew(leases)

    store.renew = poisoned  # type: ignore[method-assign]
    with guard.hold("poison", lease=0.6), guard.hold("good", lease=0.6) as good:
        wait_until(lambda: len(store.renewals) >= 6)
        assert good.remaining > 0


def test_a_very_long_lease_does_not_stop_the_thread(guard: Guard, store: WatchedStore):
    with guard.hold("long", lease=10 * 365 * 86400, keep_for=10 * 365 * 86400), guard.hold("short", lease=0.3):
        wait_until(lambda: len(store.renewals) >= 3)
