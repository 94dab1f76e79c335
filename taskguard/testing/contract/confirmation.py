"""Promise 1 for messages: `mark` confirms the messages of several queued jobs in one call."""

from __future__ import annotations

from uuid import uuid4

from taskguard.protocol.store import Claimant, Held, Lease, Store
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
)


class Confirmation(Contract):
    def test_promise_1_several_entries_are_marked_in_one_call(self, store: Store) -> None:
        queued = [claimed(store, "alice", key, state="queued") for key in ("a", "b", "c")]

        assert store.mark([(lease, LONG) for lease in reversed(queued)], copy_for=LONG) == [True] * 3
        for lease in queued:
            found = store.claim(ask("bob", lease.key, state="queued", copy_for=LONG))
            assert isinstance(found, Held) and not found.publish

    def test_promise_1_nothing_is_marked_by_an_empty_call(self, store: Store) -> None:
        assert store.mark([], copy_for=LONG) == []

    def test_promise_1_each_marked_entry_waits_for_its_own_time(self, store: Store, elapse: Elapse) -> None:
        short, long = (claimed(store, "alice", key, state="queued") for key in ("short", "long"))
        store.mark([(short, SHORT), (long, LONG)], copy_for=LONG)
        elapse(PAST)

        assert isinstance(store.claim(ask("bob", "short")), Lease)
        assert isinstance(store.claim(ask("bob", "long")), Held)

    def test_promise_1_a_marked_entry_is_overdue_in_time(self, store: Store, elapse: Elapse) -> None:
        store.mark([(claimed(store, "alice", state="queued"), LONG)], copy_for=SHORT)
        elapse(PAST)
        found = store.claim(ask("bob", state="queued", copy_for=LONG))

        assert isinstance(found, Held) and found.publish

    def test_promise_1_a_duplicate_marks_what_it_has_published(self, store: Store) -> None:
        queued = claimed(store, "alice", state="queued")
        found = store.claim(ask("bob", state="queued", copy_for=LONG))

        assert isinstance(found, Held)
        assert store.mark([(found, LONG)], copy_for=LONG) == [True]
        assert store.mark([(queued, LONG)], copy_for=LONG) == [True]

    def test_promise_3_a_job_that_was_started_is_not_marked_and_the_others_are(self, store: Store) -> None:
        queued = [claimed(store, "alice", key, state="queued") for key in ("a", "b", "c")]
        running = claimed(store, "alice", "b")
        absent = Lease("absent", "alice", uuid4().hex, token=7)
        marks: list[tuple[Claimant, float]] = [(lease, LONG) for lease in (*queued, absent)]

        assert store.mark(marks, copy_for=LONG) == [True, False, True, False]
        assert store.renew([(running, LONG)]) == [True]
        assert store.get("absent") is None

    def test_promise_3_a_running_entry_is_not_marked_even_by_its_holder(self, store: Store) -> None:
        running = claimed(store, "alice")

        assert store.mark([(running, LONG), (attempt_of(running), LONG)], copy_for=LONG) == [False, False]
        assert store.renew([(running, LONG)]) == [True]

    def test_promise_3_a_publisher_cannot_mark_its_successor(self, store: Store, elapse: Elapse) -> None:
        stale = claimed(store, "alice", state="queued", lease=SHORT)
        elapse(PAST)
        claimed(store, "bob", state="queued")

        assert store.mark([(stale, LONG)], copy_for=LONG) == [False]

    def test_promise_4_marks_are_answered_the_same_again(self, store: Store) -> None:
        queued = [claimed(store, "alice", key, state="queued") for key in ("a", "b")]
        marks = [(lease, LONG) for lease in queued]
        store.mark(marks, copy_for=LONG)
        running = claimed(store, "alice", "b")

        assert store.mark(marks, copy_for=LONG) == [True, True]
        assert store.renew([(running, LONG)]) == [True]

    def test_promise_5_a_job_that_has_ended_elsewhere_is_not_marked_as_waiting(self, store: Store) -> None:
        store.release(Claimant("key", "alice", uuid4().hex), RELEASED, anyway=True)
        queued = claimed(store, "alice", state="queued")
        store.release(Claimant("key", "alice", uuid4().hex), ended("revoked"), anyway=True)

        assert store.mark([(queued, LONG)], copy_for=LONG) == [False]
        assert isinstance(store.claim(ask("bob")), Lease)
