"""Promise 2: tokens only rise."""

from __future__ import annotations

from collections.abc import Callable

from taskguard.protocol.store import TOKEN_LIMIT, Store
from taskguard.testing.contract.helpers import PAST, RELEASED, SHORT, Contract, Elapse, claimed, succeeded, succession


class RisingTokens(Contract):
    def test_promise_2_a_token_stays_exact_in_a_double(self, store: Store) -> None:
        assert 0 < claimed(store, "alice").token < TOKEN_LIMIT

    def test_promise_2_tokens_rise_through_release(self, store: Store) -> None:
        first = claimed(store, "alice")
        store.release(first, RELEASED)

        assert claimed(store, "bob").token > first.token

    def test_promise_2_tokens_rise_through_expiry(self, store: Store, elapse: Elapse) -> None:
        first, second = succession(store, elapse)

        assert second.token > first.token

    def test_promise_2_tokens_rise_through_completion(self, store: Store) -> None:
        first = claimed(store, "alice")
        store.complete(first, succeeded())

        assert claimed(store, "bob").token > first.token

    def test_promise_2_tokens_rise_through_adoption(self, store: Store) -> None:
        queued = claimed(store, "alice", state="queued")

        assert claimed(store, "alice").token > queued.token

    def test_promise_2_tokens_rise_through_forget(self, store: Store) -> None:
        first = claimed(store, "alice", floor=2**52)
        store.forget("key")

        assert claimed(store, "bob").token > first.token

    def test_promise_2_tokens_rise_through_a_restart(self, store: Store, restart: Callable[[], None]) -> None:
        first = claimed(store, "alice")
        store.release(first, RELEASED)
        restart()

        assert claimed(store, "bob").token > first.token

    def test_promise_2_tokens_rise_through_loss_of_the_data(self, store: Store, wipe: Callable[[], None]) -> None:
        lease = claimed(store, "alice")
        for _ in range(5):  # a counter that starts at 1 again would need to catch up
            store.release(lease, RELEASED)
            lease = claimed(store, "alice")
        wipe()

        assert claimed(store, "bob").token > lease.token

    def test_promise_2_a_token_is_greater_than_the_floor(self, store: Store) -> None:
        assert claimed(store, "alice", floor=2**52).token > 2**52

    def test_promise_2_the_last_token_is_remembered_after_release(self, store: Store) -> None:
        first = claimed(store, "alice", floor=2**52)
        store.release(first, RELEASED)

        assert claimed(store, "bob").token > first.token

    def test_promise_2_the_last_token_is_remembered_after_completion(self, store: Store) -> None:
        first = claimed(store, "alice", floor=2**52)
        store.complete(first, succeeded())

        assert claimed(store, "bob").token > first.token

    def test_promise_2_the_last_token_is_remembered_after_expiry(self, store: Store, elapse: Elapse) -> None:
        first = claimed(store, "alice", floor=2**52, lease=SHORT)
        elapse(PAST)

        assert claimed(store, "bob").token > first.token
