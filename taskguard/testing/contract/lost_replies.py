"""Promise 4: a lost reply harms nobody."""

from __future__ import annotations

from uuid import uuid4

from taskguard.protocol.store import Claimant, Completed, Ending, Held, Lease, Store
from taskguard.testing.contract.helpers import (
    LONG,
    PAST,
    RELEASED,
    SHORT,
    Contract,
    Elapse,
    ask,
    claimed,
    ended,
    requeued,
    succeeded,
)


class LostReplies(Contract):
    def test_promise_4_a_repeated_claim_gets_its_own_lease_back(self, store: Store) -> None:
        for state in ("queued", "running"):
            request = ask("alice", state, state=state)

            assert store.claim(request) == store.claim(request)

    def test_promise_4_a_repeated_claim_that_took_over_gets_its_own_lease_back(
        self, store: Store, elapse: Elapse
    ) -> None:
        claimed(store, "alice", lease=SHORT)
        elapse(PAST)
        request = ask("bob")
        first = store.claim(request)

        assert isinstance(first, Lease) and first.took_over
        assert store.claim(request) == first

    def test_promise_4_a_repeated_claim_gets_its_lease_back_even_late(self, store: Store, elapse: Elapse) -> None:
        request = ask("alice", lease=SHORT)
        first = store.claim(request)
        elapse(PAST)

        assert store.claim(request) == first
        assert isinstance(store.claim(ask("bob")), Held)

    def test_promise_4_a_repeated_skip_is_answered_the_same(self, store: Store) -> None:
        lease = claimed(store, "alice")
        request = ask("bob", skip=True)

        for answer in (store.claim(request), store.claim(request)):
            assert isinstance(answer, Held)
            assert (answer.owner, answer.token, answer.state) == ("alice", lease.token, "running")

    def test_promise_4_a_repeated_skip_keeps_all_its_facts(self, store: Store) -> None:
        lease = claimed(store, "alice", payload="digest")
        request = ask("bob", skip=True)
        first, again = store.claim(request), store.claim(request)

        assert isinstance(first, Held) and isinstance(again, Held)
        for answer in (first, again):
            assert (answer.token, answer.payload, answer.publish) == (lease.token, "digest", False)
        assert again.since == first.since

    def test_promise_4_who_was_asked_to_publish_is_asked_so_again(self, store: Store, elapse: Elapse) -> None:
        store.requeue(claimed(store, "alice", state="queued"), LONG, copy_for=SHORT)
        elapse(PAST)
        request = ask("bob", state="queued", copy_for=LONG)

        for _ in range(2):
            answer = store.claim(request)
            assert isinstance(answer, Held) and answer.publish
        other = store.claim(ask("carol", state="queued", copy_for=LONG))
        assert isinstance(other, Held) and not other.publish

    def test_promise_4_a_repeated_verb_answers_as_the_first_time(self, store: Store) -> None:
        done, freed, queued = (claimed(store, "alice", key) for key in ("done", "freed", "queued"))

        for _ in range(2):
            assert store.renew([(done, LONG)]) == [True]
        for _ in range(2):
            assert store.complete(done, succeeded(b"1"))
            assert store.release(freed, RELEASED)
            assert requeued(store, queued)
            assert store.forget("freed")

    def test_promise_4_complete_is_answered_the_same_after_a_successor_came(self, store: Store) -> None:
        lease = claimed(store, "alice")
        store.complete(lease, succeeded())
        claimed(store, "bob")

        assert store.complete(lease, succeeded())
        assert self.holder(store) == "bob"

    def test_promise_4_release_is_answered_the_same_after_a_successor_came(self, store: Store) -> None:
        for ending in (RELEASED, ended("failed")):
            lease = claimed(store, "alice", ending.how)
            store.release(lease, ending)
            claimed(store, "bob", ending.how)

            assert store.release(lease, ending)
            assert self.holder(store, ending.how) == "bob"

    def test_promise_4_a_release_is_remembered_for_as_long_as_it_may_be_repeated(
        self, store: Store, elapse: Elapse
    ) -> None:
        ending = Ending(keep_for=SHORT / 2, repeat_for=LONG)
        lease = claimed(store, "alice", keep_for=SHORT / 2)
        store.release(lease, ending)
        claimed(store, "bob", keep_for=SHORT / 2)
        elapse(PAST)

        assert store.release(lease, ending)

    def test_promise_4_a_release_that_leaves_an_end_alone_is_answered_the_same_after_a_successor_came(
        self, store: Store
    ) -> None:
        lease = claimed(store, "alice")
        store.release(Claimant("key", "alice", uuid4().hex), ended("revoked"), anyway=True)
        store.release(lease, RELEASED)
        successor = claimed(store, "bob")

        assert store.release(lease, RELEASED)
        assert store.renew([(successor, LONG)]) == [True]

    def test_promise_4_a_release_is_answered_the_same_after_the_job_was_ended_elsewhere(self, store: Store) -> None:
        lease = claimed(store, "alice")
        store.release(lease, RELEASED)
        store.release(Claimant("key", "alice", uuid4().hex), ended("revoked"), anyway=True)

        assert store.release(lease, RELEASED)
        assert self.how(store, "alice") == "revoked"

    def test_promise_4_a_joiner_that_asks_again_is_answered_the_same(self, store: Store) -> None:
        store.complete(claimed(store, "alice"), succeeded(b"alice's"))
        request = ask("joiner", join="alice")
        first = store.claim(request)
        claimed(store, "bob")

        assert isinstance(first, Completed)
        assert store.claim(request) == first

    def test_promise_4_requeue_is_answered_the_same_after_the_job_started_again(self, store: Store) -> None:
        lease = claimed(store, "alice")
        requeued(store, lease)
        running = claimed(store, "alice")

        assert requeued(store, lease)
        assert store.renew([(running, LONG)]) == [True]

    def test_promise_4_a_publishers_mark_is_answered_the_same_after_the_job_started(self, store: Store) -> None:
        queued = claimed(store, "alice", state="queued")
        requeued(store, queued)
        running = claimed(store, "alice")

        assert requeued(store, queued)
        assert store.renew([(running, LONG)]) == [True]

    def test_promise_4_a_claim_that_arrives_after_its_release_is_not_granted(self, store: Store) -> None:
        request = ask("alice")
        lease = store.claim(request)
        assert isinstance(lease, Lease)
        store.release(lease, RELEASED)

        assert not isinstance(store.claim(request), Lease)

    def test_promise_4_a_claim_that_arrives_after_its_requeue_is_not_granted(self, store: Store) -> None:
        request = ask("alice")
        lease = store.claim(request)
        assert isinstance(lease, Lease)
        requeued(store, lease)

        assert not isinstance(store.claim(request), Lease)
        assert isinstance(store.claim(ask("alice")), Lease)
