"""The fence of a body that runs unguarded: a token that rises, and a lease that cannot be lost.

It serves a direct call of a guarded function, a process in which the guard is switched off, and a job that
`on_store_error="run_unguarded"` runs during an outage. It claims no key and keeps no other run out. In the body's own
database it works like any fence: its token is newer than those before it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from taskguard.fence import Effects, Fence, current_fences, make_current
from taskguard.protocol.policy import DEFAULT_KEEP, LONGEST
from taskguard.protocol.store import Lease
from taskguard.runtime.blocks import Block
from taskguard.runtime.clocks import since_boot
from taskguard.runtime.heartbeat import Holding

if TYPE_CHECKING:
    from taskguard.keys.maker import KeyMaker

_NO_STORE = cast(Any, object())
_newest = 0


def _new_token() -> int:
    """A token as stores make them: the time in µs, and higher than the last one."""
    global _newest
    _newest = max(_newest + 1, time.time_ns() // 1000)
    return _newest


def fence_of_direct_call(keys: KeyMaker, args: Sequence[Any], kwargs: Mapping[str, Any]) -> UnguardedFence:
    """The fence of a call that nobody guards. Each such call is work of its own."""
    key = keys.space
    with suppress(Exception):  # the key is not claimed: a wrong key is not a reason to refuse the call
        key = keys(args, kwargs)
    return UnguardedFence(key, f"direct-call:{os.urandom(8).hex()}")


class UnguardedFence(Block):
    """Runs its block under a fence of its own, which no store knows.

    *effects* are those of the same work where it is guarded: what `once` recorded there counts here too.
    """

    def __init__(self, key: str, owner: str, idempotency_key: str = "", effects: Effects | None = None) -> None:
        lease = Lease(key, owner, "unguarded", token=_new_token(), starts=1)
        self._holding = Holding(lease, seconds=LONGEST, asked=since_boot(), on_lost="continue")
        known_by = idempotency_key or owner
        self._fence = Fence(
            self._holding,
            store=_NO_STORE,
            ask=lambda _: None,
            idempotency_key=known_by,
            effects=effects or Effects(known_by, owner, DEFAULT_KEEP),
            unguarded=True,
        )

    def __enter__(self) -> Fence:
        self._holding.join(self.presence())
        make_current((*current_fences(), self._fence))
        return self._fence

    def leave(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        make_current(tuple([fence for fence in current_fences() if fence is not self._fence]))
