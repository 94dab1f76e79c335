"""Schedulers, a broker and a worker in one process, on a clock that moves when it is told to."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from taskguard.events import Event, Listeners
from taskguard.protocol.store import Claim, Claimant, Completed, Ending, Held, Lease, Store
from taskguard.schedule.boundaries import MICROS, Interval
from taskguard.schedule.clock import StoreClock
from taskguard.schedule.entry import ScheduledEntry, Slot, Timing
from taskguard.schedule.keeper import Timekeeper
from taskguard.schedule.note import Note
from taskguard.schedule.running import claim_of
from taskguard.stores.memory import MemoryStore
from taskguard.testing.clock import FakeClock

START = datetime(2026, 11, 16, 12, tzinfo=timezone.utc)


class Bench:
    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        self.clock.advance(START.timestamp() - self.clock() / MICROS)
        self.store: Store = MemoryStore(clock=self.clock)
        self.queue: list[Slot] = []
        self.put_back: list[Slot] = []
        self.published: list[Slot] = []
        self.ran: list[int] = []
        self.events: list[Event] = []
        self.lease = 30.0
        self.kept = False
        """Whether the queue keeps messages until their jobs have ended."""

    def keeper(self, **options: Any) -> Timekeeper:
        listeners = Listeners([self.events.append])
        return Timekeeper(self.store, listeners=listeners, clock=StoreClock(self.store, self.clock), **options)

    def publish(self, slot: Slot) -> None:
        self.queue.append(slot)
        self.published.append(slot)

    def seconds(self, slots: list[Slot] | None = None) -> list[float]:
        """When the slots are, in seconds since the start of it all."""
        return [slot.at / MICROS - START.timestamp() for slot in (self.published if slots is None else slots)]

    def kinds(self, prefix: str = "slot") -> list[str]:
        return [event.kind for event in self.events if event.kind.startswith(prefix)]

    # -- the worker ------------------------------------------------------------------------------------------------

    def start(self) -> Lease | Held | Completed:
        """A worker takes the oldest message; its body begins if it is granted."""
        slot = self.queue.pop(0)
        note = Note.of(slot.note().as_dict())
        assert note is not None
        claim = claim_of(note, slot.job_id, lease=self.lease, kept=self.kept)
        answer = self.store.claim(claim)
        if isinstance(answer, Lease):
            self.ran.append(slot.at)
        elif isinstance(answer, Held):
            if gives_up(note, answer, claim, self.store):
                self.events.append(Event(kind="slot_skipped", key=slot.entry.name, owner=slot.job_id))
            elif answer.owner != slot.job_id:
                self.put_back.append(slot)
        return answer

    def finish(self, lease: Any) -> None:
        assert self.store.complete(lease, Ending(how="succeeded", keep_for=7200))

    def work(self) -> None:
        """Everything in the queue is run."""
        self.queue += self.put_back
        self.put_back.clear()
        while self.queue:
            answer = self.start()
            if isinstance(answer, Lease):
                self.finish(answer)


def every(seconds: float, name: str = "tick", **options: Any) -> ScheduledEntry:
    timing = {key: options.pop(key) for key in ("overlap", "catch_up", "catch_up_window") if key in options}
    return ScheduledEntry(name, Interval(seconds), "task", Timing(**timing), **options)


def changed(entry: ScheduledEntry, **changes: Any) -> ScheduledEntry:
    return replace(entry, **changes)


def gives_up(note: Note, held: Held, claim: Claim, store: Store) -> bool:
    """Whether a job that meets the run of another slot ends here, skipped; else it waits for its turn.

    Its receipt says so to leftover copies of its message. That of a job that was met running came with the answer.
    """
    if note.overlap != "skip" or held.owner == claim.owner:
        return False
    ending = Ending(how="skipped", keep_for=note.keep_for)
    store.release(Claimant(claim.key, claim.owner, claim.attempt), ending, anyway=True)
    return True
