"""What to do with the open slots of an entry: `overlap` and `catch_up`. Pure functions: no store, no clock.

A slot is open if it is due and not settled. The reason decides what happens to it:

- An earlier run is still running, or was when the slot came due: `overlap` decides.
- No scheduler was running: the slot was *missed*, and `catch_up` decides.
- Otherwise it is on time and fires. A slot counts as on time for ten seconds, and for as long as this process has been
  watching since the slot came due: another scheduler may have died while publishing it.
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
"""Seconds until the next check of a run that other slots wait for."""
LATE = MICROS
"""A slot that fires later than this after its time is reported as late."""
MOST = 1000
"""At most this many open slots are examined one by one."""


@dataclass
class Watch:
    """Since when this process has been checking an entry without a break."""

    since: int
    next_look: int
    """When the next check is planned."""

    def resume(self, now: int) -> None:
        """Start over if this process was stopped, or could not reach the store, for longer than `GRACE`."""
        if now > self.next_look + GRACE:
            self.since = now

    def covers(self, slot: int, now: int) -> bool:
        return slot > self.since or now - slot <= GRACE


@dataclass(frozen=True)
class Decision:
    up_to: int
    """The last slot to settle if nothing fires."""
    fire: int | None = None
    """The slot to publish now."""
    wait: float | None = None
    """Check again after this many seconds."""
    cancel: bool = False
    """End the run that holds the entry."""
    published: bool = False
    """It was published, and only the watermark has not moved."""
    missed: int = 0
    """How many missed slots are dropped."""
    skipped: bool = False
    """Slots are dropped because a run is still running, or ran until a later slot was due."""
    events: tuple[Kind, ...] = field(default=())
    """What to report of the slot that fires."""


def decide(entry: ScheduledEntry, settled: int, now: int, run: Entry | None, watch: Watch) -> Decision:
    """*run* is the store's entry for the run of the first open slot, if there is one."""
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
        return Decision(slots[-1], cancel=True)  # a redelivery of its message must not run after the next slot
    buffered = _buffered(entry, slots, run, now)
    if buffered:
        fire = buffered[-1] if entry.timing.overlap == "buffer_one" else buffered[0]
        return Decision(fire, fire, skipped=True, events=("slot_buffered",))
    return _free(entry, slots, now, watch)


def _died(run: Entry) -> bool:
    """Whether its worker died. A scheduler may have claimed it since, and died too."""
    return has_run_out(run) or (run.state == "queued" and run.starts > 0 and run.copies == 0)


def _was_published(run: Entry) -> bool:
    """Whether the broker had a message of that job: a scheduler recorded it, or a worker received it."""
    if run.state == "free":
        return run.how not in (None, "released")
    return run.state != "queued" or run.copies > 0


def _beside(entry: ScheduledEntry, slots: list[int], run: Entry) -> Decision:
    """A run holds the entry."""
    if not _was_published(run):
        # A scheduler is publishing it, usually for a moment. If that one is dead, the claim expires soon.
        return Decision(slots[-1], wait=min(BUSY, run.remaining))
    match entry.timing.overlap:
        case "skip":
            return Decision(slots[-1], skipped=True)
        case "cancel_other":
            return Decision(slots[-1], cancel=True)
        case _:
            return Decision(slots[-1], wait=BUSY)


def _buffered(entry: ScheduledEntry, slots: list[int], run: Entry | None, now: int) -> list[int]:
    """The slots that came due during the last run and were left open until its end."""
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
        return Decision(wanted[0], wanted[0], missed=missed.index(wanted[0]), events=("slot_caught_up",))
    if not on_time:
        return Decision(missed[-1], missed=len(missed))
    late: tuple[Kind, ...] = ("slot_late",) if now - on_time[0] > LATE else ()
    return Decision(on_time[0], on_time[0], missed=len(missed), events=late)


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
