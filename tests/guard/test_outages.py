"""A store that was away: holders could not renew, and those that live are not replaced when it is back."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from taskguard import Guard, StoreUnavailableError
from taskguard.protocol.store import Claim, Claimant, Completed, Ending, Entry, Held, Lease
from taskguard.runtime.outages import LONGEST_GRACE, grace_of
from taskguard.stores.memory import MemoryStore
from taskguard.testing.clock import FakeClock
from taskguard.testing.contract import ask, claimed, succeeded

LEASE = 0.6
GRACE = LEASE / 3


class RemoteStore(MemoryStore):
    """It can be away, and others can act on it just after somebody has looked."""

    is_away = False
    looks = 0
    after_a_look: Callable[[], object] = staticmethod(lambda: None)

    def claim(self, claim: Claim, /) -> Lease | Held | Completed:
        self._answer()
        return super().claim(claim)

    def get(self, key: str, /) -> Entry | None:
        self._answer()
        self.looks += 1
        found = super().get(key)
        self.after_a_look()
        return found

    def _answer(self) -> None:
        if self.is_away:
            raise StoreUnavailableError("RemoteStore", "away")


@pytest.fixture
def store(clock: FakeClock) -> RemoteStore:
    return RemoteStore(clock=clock)


@pytest.fixture
def holder(store: RemoteStore, guard: Guard, clock: FakeClock) -> Lease:
    """Its lease ran out while the store was away, and the guard has noticed that."""
    lease = claimed(store, "holder", lease=LEASE)
    store.is_away = True
    clock.advance(2 * LEASE)
    with pytest.raises(StoreUnavailableError):
        guard.ask(ask("other", lease=LEASE), patience=0.0)
    store.is_away = False
    return lease


def test_a_holder_that_renews_when_the_store_is_back_is_not_replaced(store: RemoteStore, guard: Guard, holder: Lease):
    store.after_a_look = lambda: store.renew([(holder, LEASE)])
    _, answer = guard.ask(ask("other", lease=LEASE))
    assert isinstance(answer, Held) and answer.owner == "holder"


def test_a_holder_that_ends_when_the_store_is_back_has_ended(store: RemoteStore, guard: Guard, holder: Lease):
    """Its message was delivered again meanwhile: that is the same job, and is not run again."""
    store.after_a_look = lambda: store.complete(holder, succeeded())
    _, answer = guard.ask(ask("holder", lease=LEASE))
    assert isinstance(answer, Completed)


def test_a_holder_that_is_dead_is_replaced_after_a_third_of_its_lease(guard: Guard, holder: Lease):
    started = time.monotonic()
    _, answer = guard.ask(ask("other", lease=LEASE))
    assert isinstance(answer, Lease) and answer.took_over
    assert time.monotonic() - started >= GRACE


def test_another_process_can_be_told_of_the_outage(store: RemoteStore, holder: Lease):
    store.after_a_look = lambda: store.renew([(holder, LEASE)])
    _, answer = Guard(store, listeners=[]).ask(ask("other", lease=LEASE), after_outage=True)
    assert isinstance(answer, Held)


def test_a_place_in_the_queue_is_not_waited_for(store: RemoteStore, guard: Guard, holder: Lease):
    _, answer = guard.ask(ask("other", state="queued", lease=LEASE))
    assert isinstance(answer, Held) and answer.owner == "holder" and answer.state == "running"
    assert store.looks == 1


def test_a_day_in_the_queue_is_no_reason_to_be_careful_for_hours():
    assert grace_of(ask("other", state="queued", lease=86400)) == LONGEST_GRACE


def test_a_claim_whose_reply_was_lost_in_the_outage_gets_its_own_lease_back(
    store: RemoteStore, guard: Guard, clock: FakeClock
):
    claim = ask("me", lease=LEASE)
    store.claim(claim)
    store.is_away = True
    clock.advance(2 * LEASE)
    with pytest.raises(StoreUnavailableError):
        guard.ask(claim, patience=0.0)
    store.is_away = False
    _, answer = guard.ask(claim)
    assert isinstance(answer, Lease) and answer.attempt == claim.attempt
    assert store.looks == 1


def test_without_an_outage_nobody_looks(store: RemoteStore, guard: Guard, clock: FakeClock):
    claimed(store, "holder", lease=LEASE)
    clock.advance(2 * LEASE)
    _, answer = guard.ask(ask("other", lease=LEASE))
    assert isinstance(answer, Lease)
    assert store.looks == 0


class LosesTheReply(MemoryStore):
    """The first release is carried out, and then it does not answer for so long."""

    silence = 0.0

    def release(self, claimant: Claimant, ending: Ending, /, *, anyway: bool = False) -> bool:
        done = super().release(claimant, ending, anyway=anyway)
        if self.silence:
            self._clock.advance(self.silence)
            self.silence = 0.0
            raise StoreUnavailableError("LosesTheReply", "silent")
        return done


@pytest.mark.parametrize(("lease", "keep_for", "silence"), [(2, 2, 11), (300, None, 300), (3600, None, 3600)])
def test_a_release_is_remembered_for_as_long_as_it_is_repeated(clock, lease, keep_for, silence):
    store = LosesTheReply(clock=clock)
    guard = Guard(store, history=False)
    with guard.hold("key", lease=lease, keep_for=keep_for):
        store.silence = silence

    claimed(store, "next")


def test_a_release_is_not_remembered_for_as_long_as_an_outcome(clock):
    """A key that is held again and again, by a new owner each time, would leave a receipt of each."""
    store = MemoryStore(clock=clock)
    with Guard(store, history=False).hold("key", lease=30, keep_for=86400):
        pass
    clock.advance(120)
    [receipt] = [kept for name, kept in store._kept.items.items() if not isinstance(name, str)]
    assert receipt.until < clock()
