"""Promise 3: only the newest lease acts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import uuid4

from taskguard.protocol.store import Held, Lease, Store
from taskguard.testing.contract.helpers import (
    LONG,
    PAST,
    RELEASED,
    SHORT,
    Contract,
    Elapse,
    ask,
    attempt_of,
    claimed,
    ended,
    requeued,
    succeeded,
    succession,
)


class NewestHolder(Contract):
    def test_promise_3_a_stale_holder_cannot_renew(self, store: Store, elapse: Elapse) -> None:
        stale, successor = succession(store, elapse)

        assert store.renew([(stale, LONG), (successor, LONG)]) == [False, True]

    def test_promise_3_a_stale_holder_cannot_complete_its_successor(self, store: Store, elapse: Elapse) -> None:
        stale, successor = succession(store, elapse)

        assert not store.complete(stale, succeeded())
        assert self.holder(store) == successor.owner

    def test_promise_3_a_stale_holder_cannot_release_its_successor(self, store: Store, elapse: Elapse) -> None:
        stale, successor = succession(store, elapse)

        assert not store.release(stale, ended())
        assert self.holder(store) == successor.owner

    def test_promise_3_a_stale_holder_cannot_requeue_its_successor(self, store: Store, elapse: Elapse) -> None:
        stale, successor = succession(store, elapse)

        assert not requeued(store, stale)
        assert store.renew([(successor, LONG)]) == [True]

    def test_promise_3_a_stale_holder_cannot_touch_the_same_owner_running_again(
        self, store: Store, elapse: Elapse
    ) -> None:
        stale, successor = succession(store, elapse, successor="alice")

        assert store.renew([(stale, LONG)]) == [False]
        assert not requeued(store, stale)
        assert not store.release(stale, ended())
        assert not store.complete(stale, succeeded())
        assert store.renew([(successor, LONG)]) == [True]

    def test_promise_3_a_stale_holder_cannot_finish_after_its_successor_has_finished(
        self, store: Store, elapse: Elapse
    ) -> None:
        stale, successor = succession(store, elapse)
        store.complete(successor, succeeded(b"new"))

        assert not store.complete(stale, succeeded(b"old"))
        assert self.outcome(store, "bob") == b"new"

    def test_promise_3_a_stale_holder_cannot_finish_after_its_successor_let_go(
        self, store: Store, elapse: Elapse
    ) -> None:
        stale, successor = succession(store, elapse)
        store.release(successor, RELEASED)

        assert not store.complete(stale, succeeded())
        assert store.renew([(stale, LONG)]) == [False]

    def test_promise_3_a_late_holder_that_nobody_replaced_can_renew(self, store: Store, elapse: Elapse) -> None:
        late = claimed(store, "alice", lease=SHORT)
        elapse(PAST)

        assert store.renew([(late, LONG)]) == [True]
        assert isinstance(store.claim(ask("bob")), Held)

    def test_promise_3_a_late_holder_that_nobody_replaced_can_finish(self, store: Store, elapse: Elapse) -> None:
        late = claimed(store, "alice", lease=SHORT)
        elapse(PAST)

        assert store.complete(late, succeeded(b"late"))
        assert self.outcome(store, "alice") == b"late"

    def test_promise_3_requeue_ends_its_lease(self, store: Store) -> None:
        lease = claimed(store, "alice")
        requeued(store, lease)

        assert store.renew([(lease, LONG)]) == [False]
        assert not store.complete(lease, succeeded())
        assert not store.release(lease, ended())
        assert self.holder(store) == "alice"

    def test_promise_3_renew_acts_on_a_running_entry_only(self, store: Store) -> None:
        queued = claimed(store, "alice", state="queued")

        assert store.renew([(queued, LONG)]) == [False]

    def test_promise_3_renew_does_not_revive_what_has_ended(self, store: Store) -> None:
        done, freed = claimed(store, "alice", "done"), claimed(store, "alice", "freed")
        store.complete(done, succeeded())
        store.release(freed, RELEASED)

        assert store.renew([(done, LONG), (freed, LONG)]) == [False, False]
        assert isinstance(store.claim(ask("bob", "freed")), Lease)

    def test_promise_3_every_verb_but_claim_is_refused_on_an_absent_entry(self, store: Store) -> None:
        lease = Lease("absent", "alice", uuid4().hex, token=7)

        assert store.renew([(lease, LONG)]) == [False]
        assert not requeued(store, lease)
        assert not store.complete(lease, succeeded())
        assert not store.release(lease, ended())
        assert not store.forget("absent")
        assert store.get("absent") is None

    def test_promise_3_a_holder_whose_store_was_wiped_is_refused(self, store: Store, wipe: Callable[[], None]) -> None:
        lease = claimed(store, "alice")
        wipe()

        assert store.renew([(lease, LONG)]) == [False]
        assert not store.complete(lease, succeeded())

    def test_promise_3_a_parent_settles_by_the_attempt_that_died(self, store: Store) -> None:
        child = claimed(store, "alice")

        assert store.release(attempt_of(child), ended("failed"))
        assert isinstance(store.claim(ask("bob")), Lease)

    def test_promise_3_a_parent_requeues_by_the_attempt_that_died(self, store: Store) -> None:
        child = claimed(store, "alice")

        assert requeued(store, attempt_of(child), keep_starts=True)
        assert claimed(store, "alice").starts == 2

    def test_promise_3_settling_a_dead_attempt_cannot_touch_the_same_owner_running_elsewhere(
        self, store: Store, elapse: Elapse
    ) -> None:
        dead, elsewhere = succession(store, elapse, successor="alice")

        assert not requeued(store, attempt_of(dead))
        assert not store.release(attempt_of(dead), ended())
        assert not store.complete(attempt_of(dead), succeeded())
        assert store.renew([(elsewhere, LONG)]) == [True]

    def test_promise_3_an_attempt_granted_twice_does_not_lend_the_old_token_its_new_life(
        self, store: Store, elapse: Elapse
    ) -> None:
        request = ask("alice", lease=SHORT)
        first = store.claim(request)
        elapse(PAST)
        store.release(claimed(store, "bob"), RELEASED)
        again = store.claim(request)  # a packet that was delayed

        assert isinstance(first, Lease) and isinstance(again, Lease)
        assert again.token > first.token
        assert store.renew([(first, LONG)]) == [False]
        assert not store.complete(first, succeeded())

    def test_promise_3_a_bystander_cannot_act_with_what_it_is_told_of_a_running_job(self, store: Store) -> None:
        lease = claimed(store, "alice")
        found = store.claim(ask("bob"))

        assert isinstance(found, Held)
        assert not requeued(store, found)
        assert not store.release(found, ended())
        assert not store.complete(found, succeeded())
        assert store.renew([(lease, LONG)]) == [True]

    def test_promise_3_an_attempt_is_only_its_owners(self, store: Store) -> None:
        lease = claimed(store, "alice")

        assert not store.release(replace(lease, owner="mallory"), ended())

    def test_promise_3_a_publisher_cannot_release_what_a_worker_has_started(self, store: Store) -> None:
        queued = claimed(store, "alice", state="queued")
        running = claimed(store, "alice")

        assert not store.release(queued, RELEASED)
        assert store.renew([(running, LONG)]) == [True]

    def test_promise_3_forget_ends_the_lease(self, store: Store) -> None:
        lease = claimed(store, "alice")

        assert store.forget("key")
        assert store.renew([(lease, LONG)]) == [False]
        assert not store.complete(lease, succeeded())
        assert isinstance(store.claim(ask("bob")), Lease)

    def test_promise_3_forget_by_an_old_token_cannot_free_a_successor(self, store: Store, elapse: Elapse) -> None:
        stale, successor = succession(store, elapse)

        assert not store.forget("key", token=stale.token)
        assert store.forget("key", token=successor.token)
