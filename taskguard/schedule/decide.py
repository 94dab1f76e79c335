"""What is to be done with the open slots of an entry: `overlap` and `catch_up`. Pure: it looks, and asks nobody.

A slot is open if it is due and not settled. Why it is open decides what becomes of it:

- an earlier run lasts, or lasted when the slot came: `overlap` decides
- nobody was there: it was *missed*, and `catch_up` decides
- else it is on time, and fires. A slot counts as on time for ten seconds, and as long as this very process has been
  looking since it came: another scheduler may have died with it in its hands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

from taskguard.events import Kind
from taskguard.protocol.store import Entry
from taskguard.runtime.outages import has_run_out
from taskguard.schedule.boundaries import MICROS, micros
from taskguard.schedule.entry import ScheduledEntry
from taskguard.schedule.payload import slot_in

GRACE = 10 * MICROS
BUSY = 0.25
"""Seconds to the next look at a run that keeps others waiting."""
LATE = MICROS
"""Fired later than that after its time, a slot is told to be late."""
MOST = 1000
"""More open slots than that are not looked at one by one."""


@dataclass
class Watch:
    """Since when this process has looked at an entry without a break."""

    since: int
    next_look: int
    """By when it meant to look again."""

    def resume(self, now: int) -> None:
        """A process that was stopped, or could not ask the store, was not there."""
        if now > self.next_look + GRACE:
            self.since = now

    def covers(self, slot: int, now: int) -> bool:
        return slot > self.since or now - slot <= GRACE


@dataclass(frozen=True)
class Decision:
    up_to: int
    """What is settled if nothing fires."""
    fire: int | None = None
    """The slot to publish now."""
    wait: float | None = None
    """Nothing can be done for so many seconds."""
    cancel: bool = False
    """End the run that is in the way."""
    published: bool = False
    """It was published, and only the mark is missing."""
    missed: int = 0
    """How many slots are dropped that nobody was there for."""
    skipped: bool = False
    """They are dropped because a run lasts, or lasted until a later one was there to follow it."""
    told: tuple[Kind, ...] = field(default=())


def decide(entry: ScheduledEntry, settled: int, now: int, run: Entry | None, watch: Watch) -> Decision:
    """*run* is the entry of the run that the first open slot would have, if there is one."""
    slots = _open(entry, settled, now)
    if not entry.enabled:
        return Decision(slots[-1])
    if run is not None and _was_published(run):
        own = next((at for at in slots if entry.slot(at).job_id == run.owner), None)
        if own is not None:
            return Decision(own, published=True)
    if run is not None and run.state in ("queued", "running") and run.remaining > 0:
        return _beside(entry, slots, run)
    if run is not None and entry.timing.overlap == "cancel_other" and _died(run):
        return Decision(slots[-1], cancel=True)  # its message may come again: then it is not to run after the next
    buffered = _buffered(entry, slots, run, now)
    if buffered:
        fire = buffered[-1] if entry.timing.overlap == "buffer_one" else buffered[0]
        return Decision(fire, fire, skipped=True, told=("slot_buffered",))
    return _free(entry, slots, now, watch)


def _died(run: Entry) -> bool:
    """Whether its worker did; a scheduler may have had it in hand since, and died too."""
    return has_run_out(run) or (run.state == "queued" and run.starts > 0 and run.copies == 0)


def _was_published(run: Entry) -> bool:
    """Whether a message of that job was with the broker: somebody said so, or a worker had it."""
    if run.state == "free":
        return run.how not in (None, "released")
    return run.state != "queued" or run.copies > 0


def _beside(entry: ScheduledEntry, slots: list[int], run: Entry) -> Decision:
    """A run holds the entry."""
    if not _was_published(run):
        # In some scheduler's hands, mostly for a moment. If that one is dead, the next slot does not wait for it.
        return Decision(slots[-1], wait=min(BUSY, run.remaining))
    match entry.timing.overlap:
        case "skip":
            return Decision(slots[-1], skipped=True)
        case "cancel_other":
            return Decision(slots[-1], cancel=True)
        case _:
            return Decision(slots[-1], wait=BUSY)


def _buffered(entry: ScheduledEntry, slots: list[int], run: Entry | None, now: int) -> list[int]:
    """Those that came while the last run lasted and were left open for its end."""
    last = None if run is None or not _was_published(run) else slot_in(run.payload)
    if run is None or last is None:
        return []
    if entry.timing.overlap not in ("buffer_one", "buffer_all"):
        return []
    ended = round(run.since * MICROS) if run.state in ("free", "done") else now + round(run.remaining * MICROS)
    return [at for at in slots if last < at <= ended]


def _free(entry: ScheduledEntry, slots: list[int], now: int, watch: Watch) -> Decision:
    timing = entry.timing
    missed = [at for at in slots if not watch.covers(at, now)]
    on_time = [at for at in slots if watch.covers(at, now)]
    wanted = [at for at in missed if now - at <= timing.longest_ago * MICROS]
    if timing.catch_up == "none" or (timing.catch_up == "latest" and on_time):
        wanted = []
    elif timing.catch_up == "latest":
        wanted = wanted[-1:]
    if wanted:
        return Decision(wanted[0], wanted[0], missed=missed.index(wanted[0]), told=("slot_caught_up",))
    if not on_time:
        return Decision(missed[-1], missed=len(missed))
    late: tuple[Kind, ...] = ("slot_late",) if now - on_time[0] > LATE else ()
    return Decision(on_time[0], on_time[0], missed=len(missed), told=late)


def _open(entry: ScheduledEntry, settled: int, now: int) -> list[int]:
    if entry.is_once:
        first = entry.due(settled, now)
        return [] if first is None else [first]
    slots = list(islice(entry.boundaries(settled, now), MOST))
    if len(slots) == MOST and (entry.timing.catch_up != "all" or entry.timing.overlap == "buffer_one"):
        end = now if entry.ends_at is None else min(now, micros(entry.ends_at))
        last = entry.schedule.until(end)
        recent = entry.boundaries(end - 2 * GRACE, end)
        slots = sorted({*slots, *recent, *([last] if last else [])})
    return slots
