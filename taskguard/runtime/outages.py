"""Just after the store was away: nobody could renew meanwhile, and a lease that ran out proves nothing.

A holder that lives tries to renew all the time, at least every two seconds, and does so as soon as the store is back.
Whoever asked in vain, and gets an answer again, gives it the time for that.
"""

from __future__ import annotations

import time

from taskguard.protocol.store import Claim, Entry, Held, Store
from taskguard.runtime.backoff import pauses
from taskguard.runtime.clocks import since_boot
from taskguard.runtime.heartbeat import RENEWALS_PER_LEASE

LONGEST_GRACE = 10.0
"""Seconds: for those who hang on a connection that goes nowhere, too."""


def grace_of(claim: Claim) -> float:
    """How long a holder has to return: by then it would have renewed once, had the store been there."""
    return min(LONGEST_GRACE, claim.lease / RENEWALS_PER_LEASE)


def holder_that_may_return(store: Store, claim: Claim, grace: float) -> Held | None:
    """None when the key can be asked for: nobody was running, or has renewed, or has not for *grace* seconds.

    Who only wants a place in the queue is not kept waiting: it is told who holds the key still.
    """
    give_up = since_boot() + grace
    for pause in pauses():
        entry = store.get(claim.key)
        if entry is None or not has_run_out(entry) or entry.attempt == claim.attempt:  # its own: a reply was lost
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
