"""The mark of an entry: the slot up to which every slot is settled. It only ever rises.

It is kept as a *token*. The token that a claim is granted is greater than every one before it and than the claim's
`floor`, and nothing can lower it: not a scheduler that slept for a day with a claim half sent, not two that move it at
once. So a claim whose floor is the slot moves the mark in one step, with no lease and nothing to lose in between. The
floor is a hundred years later than the slot, to be out of reach of the clock that tokens are made of otherwise.

Whoever is granted exactly the slot's token was the first to settle it: what is told once is told by that one.
"""

from __future__ import annotations

import time

from taskguard.guard import new_attempt
from taskguard.protocol.store import TOKEN_LIMIT, Claim, Claimant, Ending, Held, Lease, Store
from taskguard.runtime.backoff import pauses
from taskguard.schedule.boundaries import MICROS
from taskguard.schedule.entry import ScheduledEntry

BASE = 100 * 365 * 86400 * MICROS
ALWAYS = TOKEN_LIMIT - BASE - 2 * 365 * 86400 * MICROS
"""Later than any slot: an entry that runs once has run."""
NO_TIME = 0.000_001
"""A claim that is over as soon as it is made."""
CLOCK_WENT_BACK = 1.0


class Marks:
    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self, entry: ScheduledEntry) -> int | None:
        """The moment up to which all is settled; None if the entry is not known under this schedule."""
        found = self._store.get(entry.mark_key)
        return None if found is None else found.token - BASE

    def move(self, entry: ScheduledEntry, to: int, now: int) -> bool:
        """All up to *to* is settled; True for the first one to say so."""
        wanted = BASE + min(to, ALWAYS)
        granted = self._claim(entry.mark_key, entry.version, entry.keep_mark_for(now), floor=wanted - 1)
        return granted == wanted

    def renew(self, entry: ScheduledEntry, mark: int, now: int) -> None:
        """Keep what is known of the entry for as long again: its mark may not move for months."""
        self.move(entry, mark, now)
        self.make_known(entry, now)

    # -- which schedule the entry is known under ------------------------------------------------------------------

    def known(self, entry: ScheduledEntry) -> tuple[str, float]:
        """The version that the entry was last known under, and since when, by the store's clock."""
        found = self._store.get(entry.known_key)
        return ("", 0.0) if found is None else (found.payload, found.since)

    def make_known(self, entry: ScheduledEntry, now: int) -> None:
        self._claim(entry.known_key, "known", entry.keep_mark_for(now), payload=entry.version)

    def _claim(self, key: str, owner: str, keep_for: float, *, floor: int = 0, payload: str = "") -> int:
        """The token. Another claim of the same moment may still be live: then it is asked again."""
        claim = Claim(key, owner, new_attempt(), lease=NO_TIME, keep_for=keep_for, floor=floor, payload=payload)
        for pause in pauses(0.001, 0.05):
            answer = self._store.claim(claim)
            if isinstance(answer, Lease):
                return answer.token
            if isinstance(answer, Held) and answer.remaining > CLOCK_WENT_BACK:
                self._free(key, keep_for)
            time.sleep(pause)
        raise AssertionError("pauses never end")

    def _free(self, key: str, keep_for: float) -> None:
        """A claim of no time that seems to last was made before the store's clock was set back."""
        found = self._store.get(key)
        if found is not None and found.remaining > CLOCK_WENT_BACK:
            claimant = Claimant(key, found.owner, found.attempt)
            self._store.release(claimant, Ending(keep_for=keep_for), anyway=True)
