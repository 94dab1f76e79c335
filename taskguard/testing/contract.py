"""The conformance suite of a store: tests for the eight promises of `taskguard.protocol.store.Store`.

Inherit from it in a test class and define five fixtures:

store    a store that is empty, or has a namespace of its own
elapse   elapse(seconds): lets that much time pass on the store's clock (advance a fake one, or sleep)
opener   a picklable callable that opens the same store in another process; None if only one process can use it
wipe     wipe(): deletes all data of the store, as an operator or a broken disk would
restart  restart(): kills the server and starts it again; lambda: None if there is no server

The suite imports no test runner. It works with any that finds `test_` methods and passes fixtures by name.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

from taskguard.errors import ConfigurationError
from taskguard.guard import Guard
from taskguard.protocol import names
from taskguard.protocol.policy import Policy
from taskguard.protocol.store import TOKEN_LIMIT, Claim, Claimant, Completed, Ending, Held, How, Lease, Store
from taskguard.testing.races import completions, race, winners
from taskguard.testing.walks import walk_beside_the_rules

LONG = 1000.0
SHORT = 0.3
PAST = 0.4
"""More than SHORT, with a margin for a busy machine."""

Elapse = Callable[[float], None]
Opener = Callable[[], Store] | None


def ask(owner: str, key: str = "key", **options: Any) -> Claim:
    """A claim under a new attempt."""
    return Claim(key, owner, uuid4().hex, **{"lease": LONG, "keep_for": LONG, **options})


def claimed(store: Store, owner: str, key: str = "key", **options: Any) -> Lease:
    answer = store.claim(ask(owner, key, **options))
    assert isinstance(answer, Lease), answer
    return answer


def succeeded(outcome: bytes | None = None, keep_for: float = LONG) -> Ending:
    return Ending(how="succeeded", keep_for=keep_for, outcome=outcome)


def ended(how: How = "failed", outcome: bytes | None = None, keep_for: float = LONG, **more: Any) -> Ending:
    return Ending(how=how, keep_for=keep_for, outcome=outcome, **more)


RELEASED = Ending(keep_for=LONG)


def succession(store: Store, elapse: Elapse, successor: str = "bob") -> tuple[Lease, Lease]:
    """A holder whose lease expired, and the one that took over."""
    stale = claimed(store, "alice", lease=SHORT)
    elapse(PAST)
    return stale, claimed(store, successor)


def requeued(store: Store, claimant: Claimant, **options: Any) -> bool:
    return store.requeue(claimant, LONG, **{"copy_for": LONG, **options})


def continues(store: Store, copy: str, copy_for: float = 0.0) -> bool:
    """Whether the store lets this copy of the message of alice, who is running, continue."""
    answer = store.claim(ask("alice", copy=copy, copy_for=copy_for))
    assert isinstance(answer, Held), answer
    return answer.publish


def name_copy(store: Store, copy: str, copy_for: float = LONG) -> None:
    """What a worker does: claim, publish, claim again."""
    request = ask("alice", copy=copy)
    first = store.claim(request)
    assert isinstance(first, Held) and first.publish
    named = store.claim(replace(request, copy_for=copy_for, stamp=first.stamp))
    assert isinstance(named, Held) and named.publish


def attempt_of(lease: Claimant) -> Claimant:
    """What a parent knows of its child: the attempt but not the token."""
    return Claimant(lease.key, lease.owner, lease.attempt)


def filled(start: str, length: int) -> str:
    """A name of exactly *length* bytes that no server can compress."""
    rest = "".join(uuid4().hex for _ in range(length // 32 + 1))
    return start + rest[: length - len(start.encode())]


def longest(key: str, *owners: str) -> tuple[str, ...]:
    return filled(key, names.ENTRY), *(filled(owner, names.OWNER) for owner in owners)


def _is_refused(act: Callable[[], object]) -> None:
    try:
        act()
    except ConfigurationError:
        return
    raise AssertionError("the guard did not raise ConfigurationError")


class StoreContract:
    """Tests of the eight promises. The guard works on every store that passes."""

    racers = 4
    rounds = 25
    walks = 4
    steps = 100

    # -- 1: every verb is one atomic step --------------------------------------------------------------------------

    def test_promise_1_exactly_one_of_many_processes_wins(self, store: Store, opener: Opener) -> None:
        for grants in winners(store, opener, racers=self.racers, rounds=self.rounds):
            assert len(grants) == 1

    def test_promise_1_of_many_processes_that_take_turns_each_gets_a_higher_token(
        self, store: Store, opener: Opener
    ) -> None:
        grants = race(store, opener, racers=self.racers, rounds=self.rounds)

        assert len(grants) == self.racers * self.rounds
        for earlier, later in itertools.pairwise(grants):
            assert earlier.token < later.token
            assert earlier.released < later.granted

    def test_promise_1_a_job_that_completes_is_never_granted_again(self, store: Store, opener: Opener) -> None:
        completed, granted = completions(store, opener, racers=self.racers, rounds=self.rounds)

        assert completed == self.rounds
        assert granted == 0

    def test_promise_1_what_the_caller_does_meanwhile_changes_nothing(self, store: Store) -> None:
        done: list[str] = []
        asked = ask("alice", meanwhile=lambda: done.append("once"))
        first = store.claim(asked)
        assert isinstance(first, Lease)
        assert done in ([], ["once"])  # the store may call it or not
        assert store.claim(asked) == first
        assert isinstance(store.claim(ask("bob", meanwhile=lambda: None)), Held)

    def test_promise_1_threads_share_a_store(self, store: Store) -> None:
        for grants in winners(store, None, racers=self.racers, rounds=self.rounds):
            assert len(grants) == 1

    def test_promise_1_verbs_do_what_the_rules_say_in_any_order(self, store: Store, elapse: Elapse) -> None:
        for seed in range(self.walks):
            walk_beside_the_rules(store, elapse, seed=seed, steps=self.steps)

    # -- names: a store keeps every name that the guard accepts ------------------------------------------------------

    def test_promise_1_the_longest_names_go_through_every_verb(self, store: Store) -> None:
        for key, owner, twin in (longest("k", "o", "t"), longest("ключ ", "é", "雪")):
            copy, payload = filled("c", names.ATTEMPT), filled("p", names.PAYLOAD)
            claim = ask(owner, key, state="queued", payload=payload, copy=copy, copy_for=LONG)
            claim.attempt = filled("a", names.ATTEMPT)
            queued = store.claim(claim)
            assert isinstance(queued, Lease)
            assert store.mark([(queued, LONG)], copy_for=LONG) == [True]
            lease = claimed(store, owner, key)
            assert store.renew([(lease, LONG)]) == [True]
            held = store.claim(ask(twin, key, skip=True))
            assert isinstance(held, Held) and held.owner == owner
            assert requeued(store, lease, copy=copy)
            lease = claimed(store, owner, key, copy=copy)
            assert store.complete(lease, succeeded(b"result"))
            done = store.claim(ask(owner, key))
            assert isinstance(done, Completed) and done.owner == owner
            skipped = store.claim(ask(twin, key))
            assert isinstance(skipped, Completed) and skipped.twin == owner
            joined = store.claim(ask("another", key, join=owner))
            assert isinstance(joined, Completed) and joined.outcome == b"result"
            assert store.release(Claimant(key, filled("r", names.OWNER), "gone"), ended("revoked"), anyway=True)
            assert [entry.key for entry in store.scan(key)] == [key]
            entry = store.get(key)
            assert entry is not None and entry.owner == owner
            assert store.forget(key)

    def test_promise_1_long_names_that_differ_in_the_last_letter_are_two(self, store: Store) -> None:
        start = filled("k", names.ENTRY)[:-1]
        lease = claimed(store, "alice", f"{start}x")
        other = claimed(store, "alice", f"{start}y")
        assert store.complete(lease, succeeded())
        assert store.complete(other, succeeded())
        owner = filled("o", names.OWNER)[:-1]
        assert isinstance(store.claim(ask(f"{owner}x", f"{start}x")), Lease)
        assert isinstance(store.claim(ask(f"{owner}y", f"{start}x")), Held)

    def test_promise_1_the_longest_durations_can_be_asked_for(self, store: Store) -> None:
        lease = claimed(store, "alice", lease=names.LONGEST, keep_for=names.LONGEST, floor=TOKEN_LIMIT - 10)
        assert lease.token == TOKEN_LIMIT - 9
        assert store.renew([(lease, names.LONGEST)]) == [True]
        entry = store.get("key")
        assert entry is not None and entry.remaining > names.LONGEST - 60
        assert store.complete(lease, succeeded(keep_for=names.LONGEST))
        assert isinstance(store.claim(ask("alice")), Completed)

    def test_what_no_store_could_keep_is_refused_by_the_guard_before_it_is_claimed(self, store: Store) -> None:
        guard = Guard(store, history=False)
        policy = Policy.of()
        long = filled("k", names.ENTRY) + "x"
        for bad in ("", "a\0b", "a\ud800", long, "é" * names.ENTRY):
            _is_refused(lambda bad=bad: guard.run(bad, lambda: None, keep_for=60))  # type: ignore[misc]
            _is_refused(lambda bad=bad: guard.free(bad))  # type: ignore[misc]
            _is_refused(lambda bad=bad: guard.new_claim(bad, "owner", policy))  # type: ignore[misc]
            _is_refused(lambda bad=bad: guard.new_claim("key", bad, policy))  # type: ignore[misc]
            for name in ("payload", "join", "copy"):
                if bad:
                    text = bad * 3
                    _is_refused(lambda n=name, t=text: guard.new_claim("key", "o", policy, **{n: t}))  # type: ignore[misc]
        inf, nan = float("inf"), float("nan")
        for name, value in (("lease", inf), ("lease", nan), ("lease", -1.0), ("lease", 1e13), ("floor", -5)):
            _is_refused(lambda n=name, v=value: guard.new_claim("key", "o", policy, **{n: v}))  # type: ignore[misc]
        for floor in (2**53, 2**64, 1.5, "7", nan):
            _is_refused(lambda f=floor: guard.new_claim("key", "o", policy, floor=f))  # type: ignore[misc]
        assert list(store.scan()) == []

    # -- 2: tokens only rise ---------------------------------------------------------------------------------------

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

    # -- 3: only the newest lease acts -----------------------------------------------------------------------------

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

    # -- 4: a lost reply harms nobody ------------------------------------------------------------------------------

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

    # -- 5: every end leaves a receipt -----------------------------------------------------------------------------

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

    # -- 6: adoption and starts ------------------------------------------------------------------------------------

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

    # -- 7: durations in; the store's clock decides ----------------------------------------------------------------

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

    # -- 8: nothing grows without end ------------------------------------------------------------------------------

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

    # -- who publishes a queued job's message ----------------------------------------------------------------------

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
            assert continues(store, "first", copy_for=copy_for)
            assert continues(store, "second", copy_for=copy_for)

    def test_promise_1_one_copy_of_a_running_jobs_message_continues(self, store: Store) -> None:
        claimed(store, "alice")
        name_copy(store, "first")

        assert not continues(store, "second")
        assert continues(store, "first")

    def test_promise_1_a_named_copy_stays_named_as_it_continues(self, store: Store) -> None:
        claimed(store, "alice")
        for _ in range(2):
            name_copy(store, "first")

        assert not continues(store, "second")

    def test_promise_1_a_copy_that_is_overdue_gives_way_to_the_next(self, store: Store, elapse: Elapse) -> None:
        claimed(store, "alice")
        name_copy(store, "first", copy_for=SHORT)
        elapse(PAST)
        name_copy(store, "second")

        assert not continues(store, "first")

    def test_promise_1_a_copy_is_not_named_if_another_was_in_the_meantime(self, store: Store, elapse: Elapse) -> None:
        claimed(store, "alice")
        slow = ask("alice", copy="slow", copy_for=LONG)
        told = store.claim(slow)
        name_copy(store, "first", copy_for=SHORT)  # from now on the slow copy is dropped where it arrives
        elapse(PAST)

        assert isinstance(told, Held)
        store.claim(replace(slow, stamp=told.stamp))
        assert continues(store, "first")

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
        assert continues(store, "first")

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
        assert not continues(store, "second")

    # -- many messages published at once ---------------------------------------------------------------------------

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

    # -- helpers -------------------------------------------------------------------------------------------------

    def holder(self, store: Store, key: str = "key") -> str:
        answer = store.claim(ask("onlooker", key))
        assert isinstance(answer, Held), answer
        return answer.owner

    def outcome(self, store: Store, owner: str, key: str = "key") -> bytes | None:
        answer = store.claim(ask(owner, key))
        assert isinstance(answer, Completed), answer
        return answer.outcome

    def how(self, store: Store, owner: str, key: str = "key") -> How:
        answer = store.claim(ask(owner, key))
        assert isinstance(answer, Completed), answer
        return answer.how


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
