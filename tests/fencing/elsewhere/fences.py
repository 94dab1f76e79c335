"""Fences as two holders of one key have them: the earlier one has slept, and was replaced."""

from __future__ import annotations

from uuid import uuid4

from taskguard import Fence, Guard
from taskguard.engine.work import Work
from taskguard.protocol.policy import Policy
from taskguard.protocol.store import Ending


def fence(guard: Guard, key: str = "", **known_by: str) -> Fence:
    """A fence of a claim that nobody renews, with a token higher than those before."""
    policy = Policy.of(lease=30, keep_for=60)
    work = guard.begin(guard.new_claim(key or uuid4().hex, uuid4().hex, policy), policy, **known_by)  # type: ignore[arg-type]
    assert isinstance(work, Work)
    guard.store.release(work.lease, Ending(keep_for=60))
    return work.fence


def succession(guard: Guard, key: str = "job", *, idempotency_key: str = "order 7") -> tuple[Fence, Fence]:
    """The fences of an earlier holder and of the one that took over, for the same work."""
    stale, newer = (fence(guard, key, idempotency_key=idempotency_key) for _ in range(2))
    assert stale.token < newer.token
    return stale, newer
