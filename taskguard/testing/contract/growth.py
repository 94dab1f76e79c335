"""Promise 8: nothing grows without end."""

from __future__ import annotations

from uuid import uuid4

from taskguard.protocol.store import Claimant, Held, Lease, Store
from taskguard.testing.contract.helpers import (
    LONG,
    PAST,
    SHORT,
    Contract,
    Elapse,
    ask,
    claimed,
    ended,
    requeued,
    succeeded,
)


class Growth(Contract):
    def test_promise_8_an_entry_ends_with_its_retention(self, store: Store, elapse: Elapse) -> None:
        store.complete(claimed(store, "alice", "done"), succeeded(keep_for=SHORT))
        store.release(claimed(store, "alice", "freed"), ended(keep_for=SHORT))
        claimed(store, "alice", "abandoned", lease=SHORT / 2, keep_for=SHORT / 2)
        claimed(store, "alice", "never started", state="queued", lease=SHORT / 2, keep_for=SHORT / 2)
        assert len(list(store.scan())) == 4
        elapse(PAST)

        assert list(store.scan()) == []
        assert store.get("done") is None

    def test_promise_8_a_receipt_ends_with_its_retention(self, store: Store, elapse: Elapse) -> None:
        store.complete(claimed(store, "alice"), succeeded(keep_for=SHORT))
        claimed(store, "bob", lease=SHORT)
        elapse(PAST)

        assert isinstance(store.claim(ask("alice")), Lease)

    def test_promise_8_a_claim_that_ran_out_is_remembered_for_its_retention(self, store: Store, elapse: Elapse) -> None:
        claimed(store, "alice", lease=SHORT, keep_for=LONG)
        elapse(PAST)
        entry = store.get("key")

        assert entry is not None
        assert (entry.state, entry.owner, entry.remaining <= 0) == ("running", "alice", True)

    def test_promise_8_scan_lists_every_entry(self, store: Store) -> None:
        keys = {f"task:{number}" for number in range(30)}
        for key in keys:
            claimed(store, "alice", key)
        claimed(store, "alice", "other")

        assert {entry.key for entry in store.scan()} == keys | {"other"}
        assert {entry.key for entry in store.scan("task:")} == keys

    def test_promise_8_scan_takes_its_prefix_to_the_letter(self, store: Store) -> None:
        odd = ("a%b", "a_b", "a*b", "a[b]", "a{b}c", "}", "a?b", "a\\b", "ключ", "a b")
        for key in (*odd, "axb"):
            claimed(store, "alice", key)

        for key in odd:
            assert [entry.key for entry in store.scan(key)] == [key]

    def test_promise_8_names_are_kept_to_the_letter(self, store: Store) -> None:
        keys = ("key", "KEY", "key ", "kéy", "key" * 100, "key" * 100 + "!")
        owners = ("owner", "OWNER", "owner ", "o" * 200, "o" * 200 + "!")
        for key in keys:
            assert isinstance(store.claim(ask("holder", key)), Lease)
        for owner in owners:
            store.complete(claimed(store, owner, f"of {owner}"), succeeded(owner.encode()))
            store.release(Claimant("receipts", owner, uuid4().hex), ended("revoked", owner.encode()), anyway=True)

        assert {entry.key for entry in store.scan("k") if entry.owner == "holder"} == set(keys) - {"KEY"}
        for owner in owners:
            assert self.outcome(store, owner, f"of {owner}") == owner.encode()
            assert self.outcome(store, owner, "receipts") == owner.encode()

    def test_promise_8_an_outcome_is_kept_whole(self, store: Store) -> None:
        outcome = bytes(range(256)) * 256
        store.complete(claimed(store, "alice"), succeeded(outcome))

        assert self.outcome(store, "alice") == outcome

    def test_promise_8_a_retention_may_be_longer_than_a_month(self, store: Store) -> None:
        month = 40 * 86400.0
        store.complete(claimed(store, "alice", keep_for=month), succeeded(keep_for=month))
        entry = store.get("key")

        assert entry is not None
        assert entry.remaining > month - 60
        assert self.how(store, "alice") == "succeeded"

    def test_promise_8_since_is_when_the_state_began(self, store: Store, elapse: Elapse) -> None:
        lease = claimed(store, "alice")
        running = store.get("key")
        elapse(SHORT)
        store.renew([(lease, LONG)])
        renewed = store.get("key")
        held = store.claim(ask("bob"))
        requeued(store, lease)
        queued = store.get("key")

        assert running and renewed and queued and isinstance(held, Held)
        assert running.since == renewed.since == held.since > 0
        assert queued.since > running.since

    def test_promise_8_get_shows_what_is_known(self, store: Store) -> None:
        lease = claimed(store, "alice", payload="digest")
        entry = store.get("key")

        assert entry is not None
        assert (entry.key, entry.state, entry.owner, entry.attempt) == ("key", "running", "alice", lease.attempt)
        assert (entry.token, entry.starts, entry.payload) == (lease.token, 1, "digest")
        assert LONG - 60 < entry.remaining <= LONG
