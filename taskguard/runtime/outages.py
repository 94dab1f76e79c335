"""Just after an outage of the store: nobody could renew during it, so an expired lease proves nothing.

A live holder retries its renewal at least every two seconds, and succeeds as soon as the store is back. A claimant
whose request failed during the outage gives the holder time for that.
"""

from __future__ import annotations

import time

from taskguard.protocol.store import Claim, Entry, Held, Store
from taskguard.runtime.backoff import pauses
from taskguard.runtime.clocks import since_boot
from taskguard.runtime.heartbeat import RENEWALS_PER_LEASE

LONGEST_GRACE = 10.0
"""Seconds; long enough also for a holder that waits on a dead connection."""


def grace_of(claim: Claim) -> float:
    """How long to wait for the holder: within this time a live one renews once."""
    return min(LONGEST_GRACE, claim.lease / RENEWALS_PER_LEASE)


def holder_that_may_return(store: Store, claim: Claim, grace: float) -> Held | None:
    """None when the key can be claimed: no job was running, or it has renewed, or it has not for *grace* seconds.

    A claim for a queued entry does not wait: it gets the holder at once.
    """
    give_up = since_boot() + grace
    for pause in pauses():
        entry = store.get(claim.key)
        if entry is None or not has_run_out(entry) or entry.attempt == claim.attempt:  # its own, after a lost reply
            return None
        left = give_up - since_boot()
        if claim.state == "queued":
            return _held(entry, left)
        if left <= 0:
            return None
        time.sleep(min(pause, left))
    raise AssertionError("pauses never end")


def has_run_out(entry: Entry) -> bool:
    return entry.state == "running" and entry.remaining <= 0


def _held(entry: Entry, remaining: float) -> Held:
    return Held(
        entry.key,
        entry.owner,
        "",
        token=entry.token,
        state="running",
        since=entry.since,
        remaining=remaining,
        payload=entry.payload,
    )
