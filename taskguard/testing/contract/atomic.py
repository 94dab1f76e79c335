"""Promise 1: every verb is one atomic step, and a store keeps every name that the guard accepts."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from taskguard.errors import ConfigurationError
from taskguard.guard import Guard
from taskguard.protocol import names
from taskguard.protocol.policy import Policy
from taskguard.protocol.store import TOKEN_LIMIT, Claimant, Completed, Held, Lease, Store
from taskguard.testing.contract.helpers import (
    LONG,
    Contract,
    Elapse,
    Opener,
    ask,
    claimed,
    ended,
    filled,
    longest,
    requeued,
    succeeded,
)
from taskguard.testing.races import completions, race, winners
from taskguard.testing.walks import walk_beside_the_rules


class AtomicSteps(Contract):
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


def _is_refused(act: Callable[[], object]) -> None:
    try:
        act()
    except ConfigurationError:
        return
    raise AssertionError("the guard did not raise ConfigurationError")
