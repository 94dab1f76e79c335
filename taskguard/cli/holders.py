"""Who holds what, for `watch`: each look takes little time, however many entries there are."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice

from taskguard.cli.keys import INTERNAL, fits
from taskguard.cli.views import state_of
from taskguard.protocol.store import Entry, Store

HELD = ("queued", "running", "ran-out")
AT_ONCE = 2000
"""Entries scanned per look; a store may keep a hundred thousand that are done."""


class Holders:
    """Scans all entries, some at each look, and remembers those that are held."""

    def __init__(self, store: Store, task: str) -> None:
        self._store = store
        self._task = task
        self._held: dict[str, Entry] = {}
        self._scan: Iterator[Entry] = iter(())
        self._is_new = True
        self.is_whole = False
        """Whether the scan has seen every entry once."""

    def oldest(self, number: int, claimed: Collection[str] = ()) -> list[Entry]:
        """The *number* entries held longest. Keys *claimed* just now count before the scan reaches them."""
        self._scan_more()
        for key in claimed:
            self._update(key, self._store.get(key))
        # An entry seen some looks ago may have ended since.
        while True:
            shown = sorted(self._held.values(), key=lambda entry: entry.since)[:number]
            for entry in shown:
                self._update(entry.key, self._store.get(entry.key))
            if all(entry.key in self._held for entry in shown):
                return [self._held[entry.key] for entry in shown]

    def _scan_more(self) -> None:
        if self._is_new:
            self._scan, self._is_new = self._store.scan(), False
        seen = 0
        for entry in islice(self._scan, AT_ONCE):
            seen += 1
            self._update(entry.key, entry)
        if seen < AT_ONCE:
            self.is_whole = self._is_new = True

    def _update(self, key: str, entry: Entry | None) -> None:
        if entry is not None and self._is_wanted(entry):
            self._held[key] = entry
        else:
            self._held.pop(key, None)

    def _is_wanted(self, entry: Entry) -> bool:
        return state_of(entry) in HELD and not entry.key.startswith(INTERNAL) and fits(entry.key, self._task)
