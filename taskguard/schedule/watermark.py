"""The watermark of an entry: every slot up to it is settled. It never falls.

The store keeps it as a *token*. A granted token is greater than every earlier one and than the claim's `floor`, and
nothing can lower it: not a scheduler suspended for a day with a claim half sent, not two that move it at once. So a
claim whose floor is the slot moves the watermark in one step, without a lease. The floor is a hundred years later than
the slot, out of reach of the clock that otherwise makes tokens.

The scheduler that is granted exactly the slot's token was the first to settle the slot: it reports what is reported
once.
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
"""Later than any slot: the watermark of a one-off entry that has run."""
NO_TIME = 0.000_001
"""The lease of a claim that expires at once."""
CLOCK_WENT_BACK = 1.0


class Watermarks:
    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self, entry: ScheduledEntry) -> int | None:
        """The moment up to which all slots are settled; None if the entry is unknown under this schedule."""
        found = self._store.get(entry.watermark_key)
        return None if found is None else found.token - BASE

    def move(self, entry: ScheduledEntry, to: int, now: int) -> bool:
        """Settle every slot up to *to*; True for the first scheduler that does so."""
        wanted = BASE + min(to, ALWAYS)
        granted = self._claim(entry.watermark_key, entry.version, entry.keep_watermark_for(now), floor=wanted - 1)
        return granted == wanted

    def renew(self, entry: ScheduledEntry, watermark: int, now: int) -> None:
        """Extend how long the store keeps the watermark, which may not move for months."""
        self.move(entry, watermark, now)
        self.make_known(entry, now)

    # -- which schedule the entry is known under ------------------------------------------------------------------

    def known(self, entry: ScheduledEntry) -> tuple[str, float]:
        """The version that the entry was last recorded under, and since when by the store's clock."""
        found = self._store.get(entry.known_key)
        return ("", 0.0) if found is None else (found.payload, found.since)

    def make_known(self, entry: ScheduledEntry, now: int) -> None:
        self._claim(entry.known_key, "known", entry.keep_watermark_for(now), payload=entry.version)

    def _claim(self, key: str, owner: str, keep_for: float, *, floor: int = 0, payload: str = "") -> int:
        """The granted token. If another claim of the same moment is still live, ask again."""
        claim = Claim(key, owner, new_attempt(), lease=NO_TIME, keep_for=keep_for, floor=floor, payload=payload)
        for pause in pauses(0.001, 0.05):
            answer = self._store.claim(claim)
            if isinstance(answer, Lease):
                return answer.token
            if isinstance(answer, Held) and answer.remaining > CLOCK_WENT_BACK:
                self._free(key, keep_for)
            time.sleep(pause)
        raise AssertionError("pauses() is infinite")

    def _free(self, key: str, keep_for: float) -> None:
        """Release a claim that should have expired: it was made before the store's clock was set back."""
        found = self._store.get(key)
        if found is not None and found.remaining > CLOCK_WENT_BACK:
            claimant = Claimant(key, found.owner, found.attempt)
            self._store.release(claimant, Ending(keep_for=keep_for), anyway=True)
