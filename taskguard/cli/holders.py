"""Who holds what, for a look that is repeated: short however many entries there are."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice

from taskguard.cli.keys import INTERNAL, fits
from taskguard.cli.views import state_of
from taskguard.protocol.store import Entry, Store

HELD = ("queued", "running", "ran-out")
AT_ONCE = 2000
"""Entries that one look goes on by; a store may keep a hundred thousand that are done."""


class Holders:
    """Goes through all entries, some at each look, and keeps what is held."""

    def __init__(self, store: Store, task: str) -> None:
        self._store = store
        self._task = task
        self._held: dict[str, Entry] = {}
        self._scan: Iterator[Entry] = iter(())
        self._is_new = True
        self.is_whole = False
        """Whether every entry was looked at once."""

    def oldest(self, number: int, claimed: Collection[str] = ()) -> list[Entry]:
        """The *number* that are held for longest; keys that were *claimed* just now are not waited for."""
        self._go_on()
        for key in claimed:
            self._note(key, self._store.get(key))
        # What was met some looks ago may be over.
        while True:
            shown = sorted(self._held.values(), key=lambda entry: entry.since)[:number]
            for entry in shown:
                self._note(entry.key, self._store.get(entry.key))
            if all(entry.key in self._held for entry in shown):
                return [self._held[entry.key] for entry in shown]

    def _go_on(self) -> None:
        if self._is_new:
            self._scan, self._is_new = self._store.scan(), False
        met = 0
        for entry in islice(self._scan, AT_ONCE):
            met += 1
            self._note(entry.key, entry)
        if met < AT_ONCE:
            self.is_whole = self._is_new = True

    def _note(self, key: str, entry: Entry | None) -> None:
        if entry is not None and self._is_wanted(entry):
            self._held[key] = entry
        else:
            self._held.pop(key, None)

    def _is_wanted(self, entry: Entry) -> bool:
        return state_of(entry) in HELD and not entry.key.startswith(INTERNAL) and fits(entry.key, self._task)
