"""Short names for what the tests of the contract do with a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

from taskguard.protocol import names
from taskguard.protocol.store import Claim, Claimant, Completed, Ending, Held, How, Lease, Store

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


def goes_on(store: Store, copy: str, copy_for: float = 0.0) -> bool:
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


class Contract:
    """What the parts of the suite share: how much they try, and how they read a store."""

    racers = 4
    rounds = 25
    walks = 4
    steps = 100

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
