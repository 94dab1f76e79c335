"""Runs past slots that were not done, and only those.

A slot that failed, or was skipped or missed, does not run under its own id again: that id has ended. Each further run
has its own id, derived from the slot and a number. So if two operators backfill the same slots at once, or one does it
twice, each slot runs once.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Literal

from taskguard.guard import new_attempt
from taskguard.protocol.store import Claim, Claimant, Completed, Ending, Entry, Held, Store
from taskguard.schedule.boundaries import MICROS
from taskguard.schedule.entry import RUNS, ScheduledEntry, Slot
from taskguard.schedule.note import Note
from taskguard.schedule.payload import write
from taskguard.schedule.publishing import CLAIM
from taskguard.schedule.watermark import NO_TIME, Watermarks

Found = Literal["done", "in progress", "not remembered", "not done"]


@dataclass(frozen=True)
class Again(Slot):
    """A further run of a slot."""

    number: int = 1

    @cached_property
    def job_id(self) -> str:
        return str(uuid.uuid5(uuid.UUID(Slot(self.entry, self.at).job_id), f"again {self.number}"))

    @property
    def run_key(self) -> str:
        return f"{RUNS}{self.entry.label}:again:{Slot(self.entry, self.at).job_id}"

    def note(self) -> Note:
        first = super().note()
        return Note(**{**first.as_dict(), "run": self.run_key, "overlap": "allow_all"})


@dataclass(frozen=True)
class Backfill:
    store: Store
    entry: ScheduledEntry
    now: int
    republish_after: float = 300.0
    queued_for: float = 86400.0

    def slots(self, since: int, until: int) -> Iterator[Slot]:
        """The slots from *since* to *until*, both included, that schedulers have settled."""
        watermark = Watermarks(self.store).read(self.entry)
        last = min(until, self.now if watermark is None else min(watermark, self.now))
        return (self.entry.slot(at) for at in self.entry.boundaries(since - 1, last))

    def find(self, slot: Slot) -> Found:
        """The state of the slot's own run and of its backfilled runs."""
        answer = self._probe(slot)
        if isinstance(answer, Completed) and answer.how == "succeeded":
            return "done"
        if isinstance(answer, Held) and answer.owner == slot.job_id:
            return "in progress"
        again = self._probe(self._next(slot))
        if isinstance(again, Completed):
            return "done"
        if isinstance(again, Held):
            return "in progress"
        known = isinstance(answer, Completed) or self.now - slot.at <= slot.keep_for * MICROS
        return "not done" if known else "not remembered"

    def run(self, slot: Slot, publish: Callable[[Slot], None]) -> bool:
        """Publish a further run of the slot; False if another run is in progress or has succeeded by now."""
        if not self._give_up(slot):
            return False
        again = self._next(slot)
        claim = self._claim(again, CLAIM)
        answer = self.store.claim(claim)
        if isinstance(answer, (Held, Completed)):
            return False
        try:
            publish(again)
        except BaseException:
            self.store.release(answer, Ending(keep_for=slot.keep_for))
            raise
        self.store.mark([(answer, self.queued_for)], copy_for=self.republish_after)
        return True

    def _give_up(self, slot: Slot) -> bool:
        """Keep the slot's own job from starting: the broker may redeliver its message hours after its worker died.

        False if that job is running by now, because it started before it was given up.
        """
        found = self._probe(slot)
        if isinstance(found, Held) and found.owner == slot.job_id:
            return False
        if not isinstance(found, Completed):
            run = self.store.get(slot.run_key)
            # The attempt that died: if its worker was only suspended, it loses its lease.
            attempt = run.attempt if run is not None and self._owns_dead(slot, run) else ""
            ending = Ending(how="revoked", keep_for=slot.keep_for)
            self.store.release(Claimant(slot.run_key, slot.job_id, attempt or new_attempt()), ending, anyway=True)
        run = self.store.get(slot.run_key)
        return run is None or run.owner != slot.job_id or run.state != "running" or run.remaining <= 0

    def _next(self, slot: Slot) -> Again:
        """The first further run that has not ended without success."""
        for number in count(1):
            again = Again(slot.entry, slot.at, number)
            answer = self._probe(again)
            if not isinstance(answer, Completed) or answer.how == "succeeded":
                return again
        raise AssertionError("count() is infinite")

    def _probe(self, slot: Slot) -> Held | Completed | None:
        if self._has_died(slot):
            return None  # claiming and releasing it would erase it, and a scheduler may be about to republish it
        answer = self.store.claim(self._claim(slot, NO_TIME))
        if isinstance(answer, (Held, Completed)):
            return answer
        self.store.release(answer, Ending(keep_for=slot.keep_for))
        return None

    def _has_died(self, slot: Slot) -> bool:
        run = self.store.get(slot.run_key)
        return run is not None and (self._owns_dead(slot, run) or slot.job_id in dict(run.unended))

    def _owns_dead(self, slot: Slot, run: Entry) -> bool:
        lapsed = run.state in ("queued", "running") and run.starts > 0 and run.remaining <= 0
        return lapsed and run.owner == slot.job_id

    def _claim(self, slot: Slot, lease: float) -> Claim:
        return Claim(
            slot.run_key,
            slot.job_id,
            new_attempt(),
            state="queued",
            lease=lease,
            keep_for=slot.keep_for,
            payload=write(slot.at),
        )
