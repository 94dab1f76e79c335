"""Promise 7: callers pass durations, and the store's clock decides."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from taskguard.protocol.store import Held, Lease, Store
from taskguard.testing.contract.helpers import LONG, PAST, SHORT, Contract, Elapse, ask, claimed, requeued


class StoreClock(Contract):
    def test_promise_7_a_client_whose_clock_is_wrong_changes_nothing(self, store: Store) -> None:
        with skewed_clock(-3600):
            claimed(store, "alice", lease=60)
        with skewed_clock(3600):
            answer = store.claim(ask("bob"))

        assert isinstance(answer, Held)
        assert 50 < answer.remaining <= 60

    def test_promise_7_a_lease_ends_by_the_stores_clock(self, store: Store, elapse: Elapse) -> None:
        claimed(store, "alice", lease=SHORT)
        assert isinstance(store.claim(ask("bob")), Held)
        elapse(PAST)

        assert isinstance(store.claim(ask("bob")), Lease)

    def test_promise_7_renewal_is_counted_from_now(self, store: Store, elapse: Elapse) -> None:
        lease = claimed(store, "alice", lease=LONG)
        store.renew([(lease, SHORT)])
        elapse(PAST)

        assert isinstance(store.claim(ask("bob")), Lease)

    def test_promise_7_a_queued_entry_ends_too(self, store: Store, elapse: Elapse) -> None:
        requeued(store, claimed(store, "other", "other"))
        store.requeue(claimed(store, "alice"), SHORT, copy_for=LONG)
        elapse(PAST)

        assert isinstance(store.claim(ask("bob")), Lease)


@contextmanager
def skewed_clock(seconds: float) -> Iterator[None]:
    """Within the block, the wall clock of this process, as read through `time`, is wrong by *seconds*."""
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + seconds
    time.time_ns = lambda: real_ns() + int(seconds * 1e9)
    try:
        yield
    finally:
        time.time, time.time_ns = real, real_ns
