"""Promise 5: every end leaves a receipt."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

from taskguard.protocol.store import Claimant, Completed, Held, How, Lease, Store
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
)


class Receipts(Contract):
    def test_promise_5_a_finished_owner_is_answered_completed(self, store: Store) -> None:
        lease = claimed(store, "alice")
        store.complete(lease, succeeded(b"result"))
        answer = store.claim(ask("alice"))

        assert isinstance(answer, Completed)
        assert (answer.owner, answer.how, answer.outcome) == ("alice", "succeeded", b"result")
        assert answer.token == lease.token

    def test_promise_5_a_finished_owner_is_answered_completed_after_another_has_had_the_key(self, store: Store) -> None:
        store.complete(claimed(store, "alice"), succeeded(b"alice's"))
        store.complete(claimed(store, "bob"), succeeded(b"bob's"))
        claimed(store, "carol")

        assert self.outcome(store, "alice") == b"alice's"
        assert self.outcome(store, "bob") == b"bob's"

    def test_promise_5_every_other_end_is_remembered_too(self, store: Store) -> None:
        for how in ("failed", "ignored", "rejected", "revoked", "expired"):
            assert store.release(claimed(store, how), ended(how, b"why"))
            answer = store.claim(ask(how))

            assert isinstance(answer, Completed)
            assert (answer.how, answer.outcome) == (how, b"why")
            assert isinstance(store.claim(ask("next", f"{how} is free")), Lease)

    def test_promise_5_a_failure_frees_the_key(self, store: Store) -> None:
        store.release(claimed(store, "alice"), ended("failed"))

        assert isinstance(store.claim(ask("bob", reuse="anything")), Lease)

    def test_promise_5_a_withdrawn_owner_may_come_again(self, store: Store) -> None:
        store.release(claimed(store, "alice", state="queued"), RELEASED)

        assert isinstance(store.claim(ask("alice", state="queued")), Lease)

    def test_promise_5_a_job_that_ends_anyway_leaves_a_receipt_whoever_holds_the_key(self, store: Store) -> None:
        holder = claimed(store, "bob")

        assert store.release(Claimant("key", "alice", uuid4().hex), ended("revoked"), anyway=True)
        assert store.renew([(holder, LONG)]) == [True]
        assert self.how(store, "alice") == "revoked"

    def test_promise_5_a_job_that_ends_anyway_on_an_unknown_key_leaves_a_receipt(self, store: Store) -> None:
        assert store.release(Claimant("key", "alice", uuid4().hex), ended("expired"), anyway=True)
        assert self.how(store, "alice") == "expired"

    def test_promise_5_a_job_that_ends_anyway_frees_the_key_it_is_queued_for(self, store: Store) -> None:
        claimed(store, "alice", state="queued")
        store.release(Claimant("key", "alice", uuid4().hex), ended("revoked"), anyway=True)

        assert isinstance(store.claim(ask("bob")), Lease)

    def test_promise_5_a_job_that_ends_anyway_does_not_free_itself_running_elsewhere(self, store: Store) -> None:
        elsewhere = claimed(store, "alice")
        store.release(Claimant("key", "alice", uuid4().hex), ended("revoked"), anyway=True)

        assert store.renew([(elsewhere, LONG)]) == [True]
        assert isinstance(store.claim(ask("bob")), Held)

    def test_promise_5_a_job_that_has_ended_elsewhere_is_not_queued_again(self, store: Store) -> None:
        running = claimed(store, "alice")
        store.release(Claimant("key", "alice", uuid4().hex), ended("revoked"), anyway=True)

        for _ in range(2):
            assert requeued(store, running)
        assert isinstance(store.claim(ask("bob")), Lease)  # no job waits for one that nobody will run
        assert self.how(store, "alice") == "revoked"

    def test_promise_5_who_did_not_end_a_job_can_say_that_it_was_answered(self, store: Store) -> None:
        store.complete(claimed(store, "alice"), succeeded(b"kept"))
        other = Claimant("key", "alice", uuid4().hex)

        assert store.release(other, ended("failed", answered=True), anyway=True)
        told = store.claim(ask("alice"))
        assert isinstance(told, Completed) and not told.answered
        assert store.release(other, ended("succeeded", answered=True), anyway=True)
        told = store.claim(ask("alice"))
        assert isinstance(told, Completed) and told.answered and told.outcome == b"kept"

    def test_promise_5_a_job_that_ends_anyway_keeps_the_end_it_had(self, store: Store) -> None:
        store.complete(claimed(store, "alice"), succeeded(b"1"))
        store.release(Claimant("key", "alice", uuid4().hex), ended("revoked"), anyway=True)

        assert self.how(store, "alice") == "succeeded"

    def test_promise_5_an_end_is_not_replaced_by_a_plain_release(self, store: Store) -> None:
        ends: tuple[How, ...] = ("revoked", "expired", "failed")
        for how in ends:
            running = claimed(store, "alice", how)
            store.release(Claimant(how, "alice", uuid4().hex), ended(how), anyway=True)

            assert store.release(running, RELEASED)
            assert self.how(store, "alice", how) == how
            assert isinstance(store.claim(ask("bob", how)), Lease)  # the key is free nevertheless

    def test_promise_5_an_end_is_not_replaced_by_the_release_of_a_parent(self, store: Store) -> None:
        child = claimed(store, "alice")
        store.release(Claimant("key", "alice", uuid4().hex), ended("expired"), anyway=True)

        assert store.release(attempt_of(child), ended("revoked"), anyway=True)
        assert self.how(store, "alice") == "expired"
        assert isinstance(store.claim(ask("bob")), Lease)

    def test_promise_5_what_a_holder_reports_of_its_own_run_replaces_an_end_that_others_reported(
        self, store: Store
    ) -> None:
        ends: tuple[How, ...] = ("succeeded", "failed")
        for how in ends:
            running = claimed(store, "alice", how)
            store.release(Claimant(how, "alice", uuid4().hex), ended("revoked"), anyway=True)

            verb = store.complete if how == "succeeded" else store.release
            assert verb(running, ended(how, b"really"))
            assert self.how(store, "alice", how) == how
            assert self.outcome(store, "alice", how) == b"really"

    def test_promise_5_an_end_lasts_from_when_the_last_run_of_the_job_is_over(
        self, store: Store, elapse: Elapse
    ) -> None:
        for key in ("released", "requeued"):
            running = claimed(store, "alice", key)
            other = Claimant(key, "alice", uuid4().hex)
            store.release(other, ended("revoked", keep_for=SHORT), anyway=True)
            assert requeued(store, running) if key == "requeued" else store.release(running, RELEASED)
        elapse(PAST)

        for key in ("released", "requeued"):
            assert self.how(store, "alice", key) == "revoked"

    def test_promise_5_a_skips_receipt_is_written_with_its_held_answer(self, store: Store) -> None:
        claimed(store, "alice")
        assert isinstance(store.claim(ask("bob", skip=True)), Held)
        answer = store.claim(ask("bob"))

        assert isinstance(answer, Completed)
        assert (answer.how, answer.twin) == ("skipped", "alice")

    def test_promise_5_a_job_that_gives_way_to_a_queued_one_is_not_skipped(self, store: Store) -> None:
        queued = claimed(store, "alice", state="queued")
        assert isinstance(store.claim(ask("bob", skip=True)), Held)
        store.release(queued, RELEASED)

        assert isinstance(store.claim(ask("bob")), Lease)

    def test_promise_5_a_joiner_is_answered_its_twins_receipt(self, store: Store) -> None:
        store.complete(claimed(store, "alice"), succeeded(b"alice's"))
        store.release(claimed(store, "bob"), ended("failed", b"bob's"))
        for twin, outcome in (("alice", b"alice's"), ("bob", b"bob's")):
            answer = store.claim(ask(f"joiner of {twin}", join=twin))

            assert isinstance(answer, Completed)
            assert (answer.owner, answer.outcome) == (twin, outcome)

    def test_promise_5_a_joiner_that_was_answered_has_ended(self, store: Store) -> None:
        ends: tuple[tuple[How, bytes | None], ...] = (("succeeded", b"alice's"), ("failed", None))
        for how, outcome in ends:
            store.complete(claimed(store, "alice", how), ended(how, outcome))
            store.claim(ask("joiner", how, join="alice"))
            claimed(store, "bob", how)
            copy = store.claim(ask("joiner", how))  # another copy of its message, without join=

            assert isinstance(copy, Completed)
            assert (copy.owner, copy.how, copy.outcome) == ("joiner", how, outcome)
            assert (copy.twin, copy.answered) == ("alice", False)

    def test_promise_5_a_joiners_end_outlives_its_twins(self, store: Store, elapse: Elapse) -> None:
        store.complete(claimed(store, "alice"), succeeded(b"alice's", keep_for=SHORT))
        store.claim(ask("joiner", join="alice"))
        elapse(PAST)

        assert self.outcome(store, "joiner") == b"alice's"

    def test_promise_5_a_joiners_end_ends_with_the_retention_of_its_claim(self, store: Store, elapse: Elapse) -> None:
        store.complete(claimed(store, "alice"), succeeded())
        store.claim(ask("joiner", join="alice", keep_for=SHORT))
        elapse(PAST)

        assert isinstance(store.claim(ask("joiner")), Lease)

    def test_promise_5_a_joiner_that_was_answered_can_be_joined(self, store: Store) -> None:
        store.complete(claimed(store, "alice"), succeeded(b"alice's"))
        store.claim(ask("bob", join="alice"))
        answer = store.claim(ask("carol", join="bob"))

        assert isinstance(answer, Completed)
        assert (answer.owner, answer.outcome) == ("bob", b"alice's")

    def test_promise_5_a_joiners_end_can_be_marked_as_answered(self, store: Store) -> None:
        store.complete(claimed(store, "alice"), succeeded(b"alice's"))
        request = ask("joiner", join="alice")
        store.claim(request)

        assert store.release(request, replace(succeeded(), answered=True), anyway=True)
        told = store.claim(ask("joiner"))
        assert isinstance(told, Completed) and told.answered and told.outcome == b"alice's"

    def test_promise_5_a_joiner_that_runs_elsewhere_is_not_answered_its_twins_end(self, store: Store) -> None:
        store.complete(claimed(store, "alice"), succeeded(b"alice's"))
        elsewhere = claimed(store, "joiner")
        answer = store.claim(ask("joiner", join="alice"))

        assert isinstance(answer, Held)
        assert (answer.owner, answer.token, answer.state) == ("joiner", elsewhere.token, "running")
        assert store.complete(elsewhere, succeeded(b"its own"))
        assert self.outcome(store, "joiner") == b"its own"

    def test_promise_5_a_joiner_that_is_answered_frees_the_key_it_is_queued_for(self, store: Store) -> None:
        store.complete(claimed(store, "alice"), succeeded(b"alice's"))
        queued = claimed(store, "joiner", state="queued")

        assert isinstance(store.claim(ask("joiner", join="alice")), Completed)
        assert not requeued(store, queued)
        assert isinstance(store.claim(ask("bob")), Lease)

    def test_promise_5_a_late_holder_whose_other_copy_was_answered_may_still_finish(
        self, store: Store, elapse: Elapse
    ) -> None:
        store.complete(claimed(store, "alice"), succeeded(b"alice's"))
        late = claimed(store, "joiner", lease=SHORT)
        elapse(PAST)

        assert isinstance(store.claim(ask("joiner", join="alice")), Completed)
        assert store.complete(late, succeeded(b"late"))

    def test_promise_5_a_joiner_whose_other_copy_was_answered_does_not_start_when_it_asks_again(
        self, store: Store, elapse: Elapse
    ) -> None:
        store.complete(claimed(store, "alice"), succeeded(b"alice's"))
        request = ask("joiner", lease=SHORT)
        store.claim(request)  # granted, but the reply is delayed for longer than the lease
        elapse(PAST)
        store.claim(ask("joiner", join="alice"))
        answer = store.claim(request)

        assert isinstance(answer, Completed)
        assert (answer.owner, answer.outcome) == ("joiner", b"alice's")

    def test_promise_5_a_joiner_takes_the_place_of_a_twin_without_an_outcome(self, store: Store) -> None:
        store.release(claimed(store, "alice"), ended("revoked"))

        assert isinstance(store.claim(ask("joiner", join="alice")), Lease)

    def test_promise_5_finished_work_of_another_answers_only_who_asks_for_it(self, store: Store) -> None:
        store.complete(claimed(store, "alice", "good"), succeeded(b"1"))
        store.complete(claimed(store, "alice", "bad"), ended("failed", b"2"))

        assert isinstance(store.claim(ask("bob", "good", reuse="success")), Completed)
        assert isinstance(store.claim(ask("bob", "bad", reuse="anything")), Completed)
        assert isinstance(store.claim(ask("bob", "bad", reuse="success")), Lease)
        assert isinstance(store.claim(ask("bob", "good", reuse="nothing")), Lease)

    def test_promise_5_only_the_fact_is_kept_if_there_is_no_outcome(self, store: Store) -> None:
        for outcome in (None, b"", b"\x00\xff binary"):
            store.complete(claimed(store, "alice", repr(outcome)), succeeded(outcome))

            assert self.outcome(store, "alice", repr(outcome)) == outcome

    def test_promise_5_the_answered_mark_is_added_to_a_receipt(self, store: Store) -> None:
        lease = claimed(store, "alice")
        store.complete(lease, succeeded(b"1"))
        before = store.claim(ask("alice"))
        assert store.complete(lease, replace(succeeded(), answered=True))
        claimed(store, "bob")
        after = store.claim(ask("alice"))

        assert isinstance(before, Completed) and not before.answered
        assert isinstance(after, Completed) and after.answered
        assert after.outcome == b"1"

    def test_promise_5_others_are_kept_out_as_long_as_the_end_lingers(self, store: Store, elapse: Elapse) -> None:
        lease = claimed(store, "alice")
        store.complete(lease, replace(succeeded(), linger=SHORT))
        answer = store.claim(ask("bob"))

        assert isinstance(answer, Held)
        assert (answer.owner, answer.token, answer.state) == ("alice", lease.token, "done")
        assert 0 < answer.remaining <= SHORT
        elapse(PAST)
        assert isinstance(store.claim(ask("bob")), Lease)
