"""The protocol of slots: any number of schedulers check the same entry, and each of its slots is published once.

The store keeps two things per entry: its **watermark** (every slot up to it is settled) and its **run**. All slots
share one run if runs must not overlap; with `allow_all` each slot has its own. A scheduler reads both and settles what
is due, oldest slot first:

1. It claims the run for the slot's job: queued, with a short lease, owned by the job id that the slot determines.
2. It publishes the job under that id.
3. It records in the run that the broker has the message. From then on the run waits like any queued job.
4. It moves the watermark to the slot.

A scheduler that dies before step 2 or 3 leaves a claim that expires, unless a worker has the job by then. One that dies
before step 4 leaves a run that is recorded as published. In each case the slot is still above the watermark, so the
next scheduler continues from there. At worst it publishes the same id again, and a worker that finds the job ended or
running does not run it. No scheduler checks a slot at or below the watermark.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from taskguard.errors import StoreUnavailableError
from taskguard.events import Event, Kind, Listeners
from taskguard.protocol.store import Claimant, Ending, Entry, Held, Store
from taskguard.runtime.clocks import since_boot
from taskguard.runtime.outages import LONGEST_GRACE, has_run_out
from taskguard.schedule.boundaries import MICROS
from taskguard.schedule.clock import StoreClock
from taskguard.schedule.decide import BUSY, Decision, Watch, decide
from taskguard.schedule.entry import ScheduledEntry, Slot
from taskguard.schedule.lost import Lookout, Unfinished
from taskguard.schedule.publishing import CLAIM, Publish, Publishing
from taskguard.schedule.skips import skipped_in_a_row
from taskguard.schedule.watermark import ALWAYS, Watermarks

MOST_AT_ONCE = 100
"""Slots that one call of `look` settles. The next call settles the rest, so that other entries get their turn."""
LONGEST_PAUSE = 300.0
REFRESH = 86400.0
"""Seconds between renewals of an entry's watermark, so that the store keeps it while any scheduler uses it."""
MOST_WATCHED = 50
LONGEST_LOSS = 8
"""With `allow_all`, a scheduler that starts checks for lost runs this many `republish_after` back, and at most
`MOST_WATCHED` slots."""
JUST_NOW = 15.0
"""Seconds: an entry new to a running scheduler, and first recorded within this window, is new to all of them."""


@dataclass
class _Memory:
    """What this process remembers of an entry. It may lose all of it: the store has what counts."""

    entry: ScheduledEntry
    watch: Watch
    settled: int = 0
    quiet_until: int = 0
    """No slot of it is due before this time."""
    check_at: int = 0
    """When to check that the store still has the watermark."""
    renew_at: int = 0
    unfinished: Unfinished = field(default_factory=Unfinished)


class Timekeeper:
    """Checks entries and publishes their due slots.

    *tracked*: the workers load taskguard, so they adopt and end the run of a slot. If they do not, schedulers cannot
    know how long a run lasts or whether its message was lost: they publish each slot once and ignore `overlap`.
    """

    def __init__(
        self,
        store: Store,
        *,
        listeners: Listeners | None = None,
        tracked: bool = True,
        republish_after: float = 300.0,
        queued_for: float = 86400.0,
        clock: StoreClock | None = None,
    ) -> None:
        self._store = store
        self._listeners = listeners or Listeners()
        self._tracked = tracked
        self._watermarks = Watermarks(store)
        self._publishing = Publishing(store, tracked=tracked, republish_after=republish_after, queued_for=queued_for)
        self._lookout = Lookout(store, self._publishing, self._report, self._store_was_away)
        self._memories: dict[str, _Memory] = {}
        self._started = False
        self._last_failure = float("-inf")
        """When the store last failed to answer."""
        self.clock = clock or StoreClock(store)

    def forget_all_but(self, entries: list[ScheduledEntry]) -> None:
        """Forget every other entry. One that is added later, or again, starts at that moment."""
        labels = {entry.label for entry in entries}
        for label in [label for label in self._memories if label not in labels]:
            del self._memories[label]
        self._started = True

    def watches(self, entry: ScheduledEntry) -> bool:
        """Whether one of its runs is published and not known to have ended."""
        memory = self._memories.get(entry.label)
        return memory is not None and bool(memory.unfinished.looks)

    def oldest_open(self) -> tuple[Slot, float] | None:
        """The oldest slot that is due and not settled, as far as this process knows, and its age in seconds."""
        now = self.clock.last_known()
        found: Slot | None = None
        for memory in self._memories.values():
            at = None if now < memory.quiet_until else memory.entry.due(memory.settled, now)
            if at is not None and (found is None or at < found.at):
                found = memory.entry.slot(at)
        return None if found is None else (found, (now - found.at) / MICROS)

    def look(self, entry: ScheduledEntry, publish: Publish, again: Publish | None = None) -> float:
        """Settle what is due of the entry; answers in how many seconds it must be looked at again.

        *publish* sends the job of a slot under `slot.job_id`, with `slot.note()` in its message, and raises if the
        broker does not take it; the error reaches the caller, and the slot stays open. *again* sends one whose message
        or worker seems lost, if that is done another way.
        """
        try:
            return self._look(entry, publish, again or publish)
        except StoreUnavailableError:
            self._last_failure = since_boot()
            raise

    def _look(self, entry: ScheduledEntry, publish: Publish, again: Publish) -> float:
        now = self.clock.now()
        memory = self._memories.get(entry.label)
        if memory is not None and memory.entry is entry and now < memory.quiet_until:
            return (memory.quiet_until - now) / MICROS  # most of thousands of entries have nothing due
        memory = self._remember(entry, now)
        memory.entry = entry
        memory.watch.resume(now)
        self._lookout.look(entry, memory.unfinished, now, again)
        pause = None
        if entry.due(memory.settled, now) is not None:
            pause = self._settle(entry, memory, now, publish)
        now = self.clock.now()
        nothing_is_open = pause is None
        if pause is None:
            pause = self._pause(entry, memory, now)
        memory.watch.next_look = now + round(pause * MICROS)
        memory.quiet_until = memory.watch.next_look if nothing_is_open else 0
        return pause

    # -- what is known ---------------------------------------------------------------------------------------------

    def _remember(self, entry: ScheduledEntry, now: int) -> _Memory:
        memory = self._memories.get(entry.label)
        if memory is None or memory.entry.version != entry.version:
            appeared = self._started or memory is not None
            memory = _Memory(entry, Watch(now, now), self._begin(entry, now, appeared))
            memory.check_at = now + round(LONGEST_PAUSE * MICROS)
            memory.renew_at = now + round(REFRESH * MICROS)
            self._memories[entry.label] = memory
            self._watch_last_runs(entry, memory, now)
        elif now >= memory.check_at:
            memory.check_at = now + round(LONGEST_PAUSE * MICROS)
            self._check(entry, memory, now)
        return memory

    def _check(self, entry: ScheduledEntry, memory: _Memory, now: int) -> None:
        """Notice an emptied store before the next slot is due, not because of that slot."""
        if self._watermarks.read(entry) is None:
            self._restore(entry, memory, now)
        elif now >= memory.renew_at:
            memory.renew_at = now + round(REFRESH * MICROS)
            if self._watermarks.known(entry)[0] == entry.version:
                self._watermarks.renew(entry, memory.settled, now)

    def _restore(self, entry: ScheduledEntry, memory: _Memory, now: int) -> int:
        """Restore the watermark in an emptied store. A slot that has just come due may have been published already."""
        due = entry.due(memory.settled, now)
        settled = memory.settled if entry.is_once else max(memory.settled, now)
        first = self._watermarks.move(entry, settled, now)
        if self._watermarks.known(entry)[0] == "":
            self._watermarks.make_known(entry, now)
        if first and due is not None and not entry.is_once:
            self._report("slot_missed", entry.slot(due), detail="the store was emptied: whether it ran is unknown")
        memory.settled = settled
        return settled

    def _begin(self, entry: ScheduledEntry, now: int, appeared: bool) -> int:
        """Up to when the entry is settled on its first check: a new or changed entry starts now."""
        version, since = self._watermarks.known(entry)
        watermark = self._watermarks.read(entry) if version == entry.version else None
        just_made_known = now / MICROS - since < JUST_NOW
        if watermark is not None and (not appeared or just_made_known or entry.is_once):
            if now / MICROS - since > REFRESH:  # daily restarted schedulers renew only here
                self._watermarks.renew(entry, watermark, now)
            return watermark
        # A one-off entry still runs if its moment has just passed; any other new entry skips past slots.
        start = 0 if entry.is_once and watermark is None and entry.due(0, now) == entry.schedule.until(now) else now
        self._watermarks.move(entry, start, now)
        self._watermarks.make_known(entry, now)
        return start

    def _watch_last_runs(self, entry: ScheduledEntry, memory: _Memory, now: int, most: int = MOST_WATCHED) -> None:
        """Watch the runs of the last slots: each may be lost, whichever scheduler published it."""
        at = entry.schedule.until(min(memory.settled, now))
        oldest = 0 if entry.is_exclusive else now - round(LONGEST_LOSS * self._publishing.lost_after(entry) * MICROS)
        for _ in range(1 if entry.is_exclusive else most):
            if at is None or at < oldest:
                break
            self._watch(memory, entry.slot(at), now)
            at = entry.schedule.until(at - 1)

    # -- one look --------------------------------------------------------------------------------------------------

    def _settle(self, entry: ScheduledEntry, memory: _Memory, now: int, publish: Publish) -> float | None:
        """Settle the open slots; return None if none is left, else the seconds until the next check."""
        for _ in range(MOST_AT_ONCE):
            looked = since_boot()
            watermark = self._watermarks.read(entry)
            if watermark is None:
                watermark = self._restore(entry, memory, now)
            if watermark > memory.settled:
                memory.settled = watermark
                self._watch_last_runs(entry, memory, now, 1)  # another scheduler published it, and may die
            first = entry.due(memory.settled, now)
            if first is None:
                return None
            run = self._store.get(entry.slot(first).run_key) if self._tracked else None
            if run is not None and has_run_out(run) and self._store_was_away():
                return BUSY  # the run may be alive
            decision = decide(entry, memory.settled, now, run, memory.watch)
            pause = self._carry_out(entry, decision, memory, now, looked, run, publish)
            if pause is not None:
                return pause
        return 0.0

    def _carry_out(
        self,
        entry: ScheduledEntry,
        decision: Decision,
        memory: _Memory,
        now: int,
        looked: float,
        run: Entry | None,
        publish: Publish,
    ) -> float | None:
        if decision.wait is not None:
            return max(0.01, min(decision.wait, CLAIM))
        if decision.cancel and run is not None:
            self._cancel(run, entry.slot(decision.up_to))
            return None
        if decision.fire is None:
            self._pass_over(entry, decision, memory, now, run)
            return None
        slot, before = entry.slot(decision.fire), memory.settled
        published = self._publishing.first(slot, looked, publish)
        if published is None:
            return BUSY  # another scheduler is publishing it
        up_to = ALWAYS if entry.is_once else decision.fire
        first = self._move(entry, up_to, memory, now)
        if published:
            self._report("scheduled", slot)
            for kind in decision.events:
                self._report(kind, slot, detail=f"{(now - slot.at) / MICROS:.1f} s after its time")
        if first and decision.missed:
            self._report("slot_missed", slot, detail=f"{decision.missed} before it")
        if first and decision.skipped:
            self._report_skipped(entry, before, decision.fire - 1, run)
        self._watch(memory, slot, now)
        return None

    def _pass_over(
        self, entry: ScheduledEntry, decision: Decision, memory: _Memory, now: int, run: Entry | None
    ) -> None:
        before = memory.settled
        if decision.published:
            self._watch(memory, entry.slot(decision.up_to), now)  # published by a scheduler that died
        up_to = ALWAYS if entry.is_once and decision.published else decision.up_to
        if not self._move(entry, up_to, memory, now):
            return
        slot = entry.slot(decision.up_to)
        if decision.missed:
            self._report("slot_missed", slot, detail=f"{decision.missed} up to it")
        if decision.skipped and run is not None:
            self._report_skipped(entry, before, decision.up_to, run)
            in_a_row = skipped_in_a_row(entry, run, before, decision.up_to)
            if in_a_row:
                self._report("slots_blocked", slot, by=run, detail=f"{in_a_row} slots in a row were skipped")

    def _report_skipped(self, entry: ScheduledEntry, before: int, up_to: int, run: Entry | None) -> None:
        for at in entry.boundaries(before, up_to):
            self._report("slot_skipped", entry.slot(at), by=run)

    def _move(self, entry: ScheduledEntry, to: int, memory: _Memory, now: int) -> bool:
        first = self._watermarks.move(entry, to, now)
        memory.settled = max(memory.settled, to)
        return first

    def _cancel(self, run: Entry, by: Slot) -> None:
        """End the running run for good. Its worker notices when it next renews the lease."""
        ending = Ending(how="revoked", keep_for=by.keep_for)
        self._store.release(Claimant(run.key, run.owner, run.attempt), ending, anyway=True)
        self._report("slot_cancelled", by, by=run)

    def _watch(self, memory: _Memory, slot: Slot, now: int) -> None:
        """Watch the slot's run: its message or its worker may be lost."""
        if self._tracked:
            memory.unfinished.watch(slot, now + round(self._publishing.lost_after(slot.entry) * MICROS))

    def _store_was_away(self) -> bool:
        """Whether the store failed recently. No worker could renew then, so an expired lease proves nothing."""
        return since_boot() - self._last_failure < LONGEST_GRACE

    # -- the rest --------------------------------------------------------------------------------------------------

    def _pause(self, entry: ScheduledEntry, memory: _Memory, now: int) -> float:
        following = None if memory.settled >= ALWAYS else entry.due(max(memory.settled, 0), ALWAYS)
        moments = list(memory.unfinished.looks.values())
        if following is not None:
            moments.append(following)
        soonest = min(moments, default=now + round(LONGEST_PAUSE * MICROS))
        return min(LONGEST_PAUSE, max(0.0, (soonest - now) / MICROS))

    def _report(self, kind: Kind, slot: Slot, *, by: Entry | Held | None = None, detail: str = "") -> None:
        when = f"slot {slot.scheduled_for.isoformat()}"
        self._listeners.notify(
            Event(
                kind=kind,
                key=slot.entry.name,
                owner=slot.job_id,
                holder=by.owner if by else "",
                state=by.state if by else "",
                since=by.since if by else 0.0,
                detail=f"{when}, {detail}" if detail else when,
            )
        )
