"""The fence of a body that runs unguarded: a token that rises, and a lease that nobody can take away."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, cast

from taskguard.fence import Effects, Fence, current_fences, make_current
from taskguard.protocol.policy import DEFAULT_KEEP, LONGEST
from taskguard.protocol.store import Lease
from taskguard.runtime.blocks import Block
from taskguard.runtime.clocks import since_boot
from taskguard.runtime.heartbeat import Holding

_NO_STORE = cast(Any, object())


def lone_fence(key: str, owner: str, idempotency_key: str = "", effects: Effects | None = None) -> LoneFence:
    """The block runs under a fence of its own; no store knows of it.

    *effects* are those of the same work where it is guarded: what `once` has seen of it there counts here too.
    """
    return LoneFence(key, owner, idempotency_key, effects)


class LoneFence(Block):
    def __init__(self, key: str, owner: str, idempotency_key: str, effects: Effects | None) -> None:
        lease = Lease(key, owner, "unguarded", token=time.time_ns() // 1000, starts=1)
        self._holding = Holding(lease, seconds=LONGEST, asked=since_boot(), on_lost="continue")
        known_by = idempotency_key or owner
        self._fence = Fence(
            self._holding,
            store=_NO_STORE,
            ask=lambda _: None,
            idempotency_key=known_by,
            effects=effects or Effects(known_by, owner, DEFAULT_KEEP),
        )

    def __enter__(self) -> Fence:
        self._holding.join(self.presence())
        make_current((*current_fences(), self._fence))
        return self._fence

    def leave(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        make_current(tuple([fence for fence in current_fences() if fence is not self._fence]))
