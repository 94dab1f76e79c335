"""Promise 1 for messages: who publishes the message of a queued job, and which copy of it continues."""

from __future__ import annotations

from dataclasses import replace

from taskguard.protocol.store import Held, Lease, Store
from taskguard.testing.contract.helpers import (
    LONG,
    PAST,
    SHORT,
    Contract,
    Elapse,
    ask,
    claimed,
    goes_on,
    name_copy,
    requeued,
)


class Publication(Contract):
    def test_promise_1_a_duplicate_of_an_unmarked_entry_is_asked_to_publish(self, store: Store) -> None:
        queued = claimed(store, "alice", state="queued")
        found = store.claim(ask("bob", state="queued", copy_for=LONG))

        assert isinstance(found, Held) and found.publish
        assert requeued(store, found)  # the duplicate confirms that it published
        found = store.claim(ask("carol", state="queued", copy_for=LONG))
        assert isinstance(found, Held) and not found.publish
        assert requeued(store, queued)

    def test_promise_1_of_many_duplicates_of_an_overdue_entry_one_is_asked_to_publish(
        self, store: Store, elapse: Elapse
    ) -> None:
        store.requeue(claimed(store, "alice", state="queued"), LONG, copy_for=SHORT)
        elapse(PAST)
        answers = [store.claim(ask(f"duplicate {n}", state="queued", copy_for=LONG)) for n in range(3)]

        assert [isinstance(answer, Held) and answer.publish for answer in answers] == [True, False, False]

    def test_promise_1_the_time_between_two_publications_doubles(self, store: Store, elapse: Elapse) -> None:
        store.requeue(claimed(store, "alice", state="queued"), LONG, copy_for=0.001)
        elapse(0.05)
        first = store.claim(ask("bob", state="queued", copy_for=SHORT))
        elapse(PAST)
        second = store.claim(ask("carol", state="queued", copy_for=SHORT))
        elapse(PAST)
        third = store.claim(ask("dave", state="queued", copy_for=SHORT))

        assert [isinstance(a, Held) and a.publish for a in (first, second, third)] == [True, False, True]

    def test_promise_1_an_entry_is_published_again_three_times_at_most(self, store: Store, elapse: Elapse) -> None:
        store.requeue(claimed(store, "alice", state="queued"), LONG, copy_for=0.001)
        published = 0
        for number in range(6):
            elapse(0.05)
            answer = store.claim(ask(f"duplicate {number}", state="queued", copy_for=0.001))
            published += isinstance(answer, Held) and answer.publish

        assert published == 3

    def test_promise_1_a_call_whose_own_id_is_queued_publishes(self, store: Store) -> None:
        requeued(store, claimed(store, "alice", state="queued"))
        answer = store.claim(ask("alice", state="queued", copy_for=LONG))

        assert isinstance(answer, Held) and answer.publish

    def test_promise_1_a_copy_of_a_running_jobs_message_is_not_named_before_it_is_published(self, store: Store) -> None:
        claimed(store, "alice")

        for copy_for in (0.0, LONG):
            assert goes_on(store, "first", copy_for=copy_for)
            assert goes_on(store, "second", copy_for=copy_for)

    def test_promise_1_one_copy_of_a_running_jobs_message_goes_on(self, store: Store) -> None:
        claimed(store, "alice")
        name_copy(store, "first")

        assert not goes_on(store, "second")
        assert goes_on(store, "first")

    def test_promise_1_a_named_copy_stays_named_as_it_goes_on(self, store: Store) -> None:
        claimed(store, "alice")
        for _ in range(2):
            name_copy(store, "first")

        assert not goes_on(store, "second")

    def test_promise_1_a_copy_that_is_overdue_gives_way_to_the_next(self, store: Store, elapse: Elapse) -> None:
        claimed(store, "alice")
        name_copy(store, "first", copy_for=SHORT)
        elapse(PAST)
        name_copy(store, "second")

        assert not goes_on(store, "first")

    def test_promise_1_a_copy_is_not_named_if_another_was_in_the_meantime(self, store: Store, elapse: Elapse) -> None:
        claimed(store, "alice")
        slow = ask("alice", copy="slow", copy_for=LONG)
        told = store.claim(slow)
        name_copy(store, "first", copy_for=SHORT)  # from now on the slow copy is dropped where it arrives
        elapse(PAST)

        assert isinstance(told, Held)
        store.claim(replace(slow, stamp=told.stamp))
        assert goes_on(store, "first")

    def test_promise_1_a_copy_is_not_named_if_the_job_was_started_again_in_the_meantime(
        self, store: Store, elapse: Elapse
    ) -> None:
        claimed(store, "alice", lease=SHORT)
        slow = ask("alice", copy="slow", copy_for=LONG)
        told = store.claim(slow)
        elapse(PAST)
        claimed(store, "alice")

        assert isinstance(told, Held)
        store.claim(replace(slow, stamp=told.stamp))
        assert goes_on(store, "first")

    def test_promise_1_who_names_its_copy_is_granted_the_key_if_it_is_free_by_then(self, store: Store) -> None:
        running = claimed(store, "alice")
        request = ask("alice", copy="first")
        told = store.claim(request)
        requeued(store, running)

        assert isinstance(told, Held)
        assert isinstance(store.claim(replace(request, copy_for=LONG, stamp=told.stamp)), Lease)

    def test_promise_4_who_named_its_copy_is_told_the_same_again(self, store: Store) -> None:
        claimed(store, "alice")
        request = ask("alice", copy="first", copy_for=LONG)
        told = store.claim(request)
        assert isinstance(told, Held)

        for _ in range(2):
            answer = store.claim(replace(request, stamp=told.stamp))
            assert isinstance(answer, Held) and answer.publish
        assert not goes_on(store, "second")
