"""Warn when one run keeps slot after slot from running."""

from __future__ import annotations

from itertools import islice

from taskguard.protocol.store import Entry
from taskguard.schedule.entry import ScheduledEntry
from taskguard.schedule.payload import slot_in

WARN_AFTER = 5
"""Warn after this many skipped slots in a row, then after twice as many, and so on."""
_MOST = 10_000


def skipped_in_a_row(entry: ScheduledEntry, run: Entry, before: int, up_to: int) -> int:
    """How many slots this run has kept from running, if a warning is due now; else 0."""
    begun = slot_in(run.payload)
    if begun is None:
        return 0
    earlier = sum(1 for _ in islice(entry.boundaries(begun, before), _MOST))
    now = earlier + sum(1 for _ in islice(entry.boundaries(max(begun, before), up_to), _MOST))
    threshold = WARN_AFTER
    while threshold <= earlier:
        threshold *= 2
    return now if now >= threshold else 0
