"""Promise 6: a job adopts its own queued entry, and an entry counts its starts."""

from __future__ import annotations

from taskguard.protocol.store import Held, Lease, Store
from taskguard.testing.contract.helpers import (
    LONG,
    PAST,
    SHORT,
    Contract,
    Elapse,
    ask,
    claimed,
    requeued,
    succeeded,
    succession,
)


class Adoption(Contract):
    def test_promise_6_a_queued_entry_is_adopted_by_its_own_owner(self, store: Store) -> None:
        claimed(store, "alice", state="queued")
        lease = claimed(store, "alice")

        assert (lease.state, lease.starts, lease.took_over) == ("running", 1, False)

    def test_promise_6_a_queued_entry_is_adopted_by_nobody_else(self, store: Store) -> None:
        queued = claimed(store, "alice", state="queued")
        answer = store.claim(ask("bob"))

        assert isinstance(answer, Held)
        assert (answer.owner, answer.token, answer.state) == ("alice", queued.token, "queued")

    def test_promise_6_a_running_entry_is_not_adopted_even_by_its_own_owner(self, store: Store) -> None:
        claimed(store, "alice")
        answer = store.claim(ask("alice"))

        assert isinstance(answer, Held)
        assert (answer.owner, answer.state) == ("alice", "running")

    def test_promise_6_a_job_starts_by_the_message_that_was_named_when_it_was_queued(
        self, store: Store, elapse: Elapse
    ) -> None:
        assert requeued(store, claimed(store, "alice"), copy_for=SHORT, copy="the retry")

        for older in ("", "older"):
            told = store.claim(ask("alice", copy=older))
            assert isinstance(told, Held) and told.state == "queued"
        lease = store.claim(ask("alice", copy="the retry"))
        assert isinstance(lease, Lease)
        assert requeued(store, lease, copy="did not leave")
        assert requeued(store, lease)
        lease = store.claim(ask("alice", copy="older"))
        assert isinstance(lease, Lease)
        assert requeued(store, lease, copy_for=SHORT, copy="lost")
        elapse(PAST)
        assert isinstance(store.claim(ask("alice", copy="older")), Lease)  # the named message seems lost

    def test_promise_6_starts_are_counted_while_workers_die(self, store: Store, elapse: Elapse) -> None:
        first, second = succession(store, elapse, successor="alice")

        assert (first.starts, second.starts) == (1, 2)
        assert second.took_over

    def test_promise_6_a_retry_is_not_a_death(self, store: Store) -> None:
        requeued(store, claimed(store, "alice"))

        assert claimed(store, "alice").starts == 1

    def test_promise_6_starts_are_remembered_while_another_has_the_key(self, store: Store, elapse: Elapse) -> None:
        _, other = succession(store, elapse)
        store.complete(other, succeeded())

        assert claimed(store, "alice").starts == 2

    def test_promise_6_two_jobs_that_kill_their_workers_in_turn_are_both_counted(
        self, store: Store, elapse: Elapse
    ) -> None:
        starts = []
        for owner in ("alice", "bob", "alice", "bob"):
            starts.append(claimed(store, owner, lease=SHORT).starts)
            elapse(PAST)

        assert starts == [1, 1, 2, 2]

    def test_promise_6_the_starts_of_several_dead_owners_are_remembered(self, store: Store, elapse: Elapse) -> None:
        owners = ("alice", "bob", "carol", "dave")
        starts = []
        for owner in owners * 2:
            starts.append(claimed(store, owner, lease=0.001).starts)
            elapse(0.05)

        assert starts == [1] * 4 + [2] * 4

    def test_promise_6_an_entry_names_who_had_begun_and_not_ended(self, store: Store, elapse: Elapse) -> None:
        for owner, state in (("alice", "running"), ("bob", "running"), ("carol", "queued"), ("dave", "running")):
            claimed(store, owner, state=state, lease=0.001, payload=f"{owner}'s")
            elapse(0.05)

        dave = store.get("key")
        assert dave is not None and dave.unended == (("alice", "alice's"), ("bob", "bob's"))
        [seen] = store.scan("key")
        assert seen.unended == dave.unended

        store.complete(claimed(store, "alice"), succeeded())
        alice = store.get("key")
        assert alice is not None and alice.unended == (("bob", "bob's"), ("dave", "dave's"))

    def test_promise_6_only_a_queued_entry_can_be_replaced(self, store: Store) -> None:
        claimed(store, "alice", "queued", state="queued")
        claimed(store, "alice", "running")

        assert isinstance(store.claim(ask("bob", "queued", state="queued", replace_queued=True)), Lease)
        assert isinstance(store.claim(ask("bob", "running", state="queued", replace_queued=True)), Held)

    def test_a_label_stays_with_its_key_and_where_is_the_last_claims(self, store: Store) -> None:
        def shown() -> tuple[str, str]:
            entry = store.get("key")
            [listed] = store.scan("key")
            assert entry is not None and (entry.label, entry.where) == (listed.label, listed.where)
            return entry.label, entry.where

        claimed(store, "alice", state="queued", label="Größe=“7”", where="web:1")
        assert shown() == ("Größe=“7”", "web:1")
        running = claimed(store, "alice", where="celery@pod:2")
        assert shown() == ("Größe=“7”", "celery@pod:2")
        store.requeue(running, LONG, copy_for=LONG)
        assert shown() == ("Größe=“7”", "celery@pod:2")
        store.complete(claimed(store, "alice", where="celery@pod:3"), succeeded())
        assert shown() == ("Größe=“7”", "celery@pod:3")
        claimed(store, "bob", label="size=7")
        assert shown() == ("size=7", "")
        store.forget("key")
        assert shown() == ("size=7", "")
