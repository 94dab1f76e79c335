"""The fence of a body that runs unguarded: a token that rises, and a lease that nobody can take away."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from taskguard.clocks import since_boot
from taskguard.fence import Effects, Fence, current_fences, make_current
from taskguard.heartbeat import Holding
from taskguard.policy import DEFAULT_KEEP, LONGEST
from taskguard.store import Lease

_NO_STORE = cast(Any, object())


@contextmanager
def lone_fence(key: str, owner: str, idempotency_key: str = "", effects: Effects | None = None) -> Iterator[Fence]:
    """The block runs under a fence of its own; no store knows of it.

    *effects* are those of the same work where it is guarded: what `once` has seen of it there counts here too.
    """
    lease = Lease(key, owner, "unguarded", token=time.time_ns() // 1000, starts=1)
    holding = Holding(lease, seconds=LONGEST, asked=since_boot(), on_lost="continue")
    known_by = idempotency_key or owner
    effects = effects or Effects(known_by, owner, DEFAULT_KEEP)
    fence = Fence(holding, store=_NO_STORE, ask=lambda _: None, idempotency_key=known_by, effects=effects)
    before = current_fences()
    make_current((*before, fence))
    try:
        yield fence
    finally:
        make_current(before)
