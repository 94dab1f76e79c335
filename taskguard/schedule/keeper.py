"""The protocol of slots: any number of schedulers look at the same entry, and each slot of it is published once.

What the store has of an entry: its **mark** (every slot up to it is settled), and the entry of its **run**: one for all
slots where runs must not overlap, one per slot with `allow_all`. A look reads both and settles what is due, the oldest
slot first:

1. claim the run for the slot's job, queued, with a short lease; the owner is the job id that the slot makes
2. publish the job under that id
3. say in the run's entry that the message is with the broker: now it waits there like any queued job
4. move the mark to the slot

Who dies before 2 leaves a claim that runs out; who dies before 3 leaves one too, unless a worker has the job by then;
who dies before 4 leaves a run that says itself that it was published. In each case the slot is still above the mark, so
the next look of anybody goes on from there: at worst the same id is published again, and a worker that finds it ended
or running does not run it. A slot at or below the mark is not even looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from taskguard.clocks import since_boot
from taskguard.errors import StoreUnavailableError
from taskguard.events import Event, Kind, Listeners
from taskguard.guard import new_attempt
from taskguard.outages import LONGEST_GRACE, has_run_out
from taskguard.schedule.boundaries import MICROS
from taskguard.schedule.clock import StoreClock
from taskguard.schedule.decide import BUSY, Decision, Watch, decide
from taskguard.schedule.entry import ScheduledEntry, Slot
from taskguard.schedule.mark import ALWAYS, NO_TIME, Marks
from taskguard.schedule.skips import skipped_in_a_row
from taskguard.store import Claim, Claimant, Completed, Ending, Entry, Held, Lease, Store

CLAIM = 2.0
"""Seconds that a scheduler has from the claim of a slot to its publication; then another one takes it up."""
MOST_AT_ONCE = 100
"""Slots that one look settles; the rest follows in the next one, so that other entries have their turn."""
LONGEST_PAUSE = 300.0
REFRESH = 86400.0
"""How often what is known of an entry is written down again, so that it is kept as long as somebody looks at it."""
MOST_WATCHED = 50
LONGEST_LOSS = 8
"""A scheduler that starts looks whether messages were lost: of so many slots at most, in so many `republish_after`."""
JUST_NOW = 15.0
"""An entry that appears in a running scheduler was made known so lately by another that saw it first."""

Publish = Callable[[Slot], None]


@dataclass
class _Memory:
    """What this process remembers of an entry. All of it can be lost: the store has what counts."""

    entry: ScheduledEntry
    watch: Watch
    settled: int = 0
    quiet_until: int = 0
    """Nothing of it can be due before."""
    check_at: int = 0
    """When to look whether the store still has the mark."""
    renew_at: int = 0
    unfinished: dict[str, tuple[Slot, int]] = field(default_factory=dict)
    """Jobs that were published and not seen to have begun, and when to look whether their message is lost."""


class Timekeeper:
    """Looks at entries, and has their slots published.

    *tracked*: the workers load taskguard, and so adopt and end the entry of a run. If they do not, nobody can know how
    long a run lasts nor whether its message was lost: slots are published once, whatever `overlap` says.
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
        self._republish_after = republish_after
        self._queued_for = queued_for
        self._marks = Marks(store)
        self._memories: dict[str, _Memory] = {}
        self._started = False
        self._last_failure = float("-inf")
        """When the store was last asked in vain."""
        self.clock = clock or StoreClock(store)

    def forget_all_but(self, entries: list[ScheduledEntry]) -> None:
        """These are the entries there are now. One that comes back later, or comes anew, starts at that moment."""
        labels = {entry.label for entry in entries}
        for label in [label for label in self._memories if label not in labels]:
            del self._memories[label]
        self._started = True

    def look(self, entry: ScheduledEntry, publish: Publish) -> float:
        """Settle what is due of the entry; answers in how many seconds it must be looked at again.

        *publish* sends the job of a slot under `slot.job_id`, with `slot.note()` in its message, and raises if the
        broker does not take it; the error reaches the caller, and the slot stays open.
        """
        try:
            return self._look(entry, publish)
        except StoreUnavailableError:
            self._last_failure = since_boot()
            raise

    def _look(self, entry: ScheduledEntry, publish: Publish) -> float:
        now = self.clock.now()
        memory = self._memories.get(entry.label)
        if memory is not None and memory.entry is entry and now < memory.quiet_until:
            return (memory.quiet_until - now) / MICROS  # of thousands of entries, few have something to look at
        memory = self._remember(entry, now)
        memory.entry = entry
        memory.watch.resume(now)
        self._look_for_lost_messages(entry, memory, now, publish)
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
        """A store that was emptied must not be found out by the slot that is due then."""
        if self._marks.read(entry) is None:
            self._restore(entry, memory, now)
        elif now >= memory.renew_at:
            memory.renew_at = now + round(REFRESH * MICROS)
            if self._marks.known(entry)[0] == entry.version:
                self._marks.renew(entry, memory.settled, now)

    def _restore(self, entry: ScheduledEntry, memory: _Memory, now: int) -> int:
        """Write down again what a store that was emptied knew. What has just come due may have been published."""
        due = entry.due(memory.settled, now)
        settled = memory.settled if entry.is_once else max(memory.settled, now)
        first = self._marks.move(entry, settled, now)
        if self._marks.known(entry)[0] == "":
            self._marks.make_known(entry, now)
        if first and due is not None and not entry.is_once:
            self._tell("slot_missed", entry.slot(due), detail="the store was emptied, nobody knows whether it has run")
        memory.settled = settled
        return settled

    def _begin(self, entry: ScheduledEntry, now: int, appeared: bool) -> int:
        """Up to where the entry is settled when it is first looked at: a new or changed one starts now."""
        version, since = self._marks.known(entry)
        mark = self._marks.read(entry) if version == entry.version else None
        just_made_known = now / MICROS - since < JUST_NOW
        if mark is not None and (not appeared or just_made_known or entry.is_once):
            if now / MICROS - since > REFRESH:  # schedulers that are restarted every day refresh nothing else
                self._marks.renew(entry, mark, now)
            return mark
        # A moment that was asked for runs also if it has just passed; of everything else, what is past is past.
        start = 0 if entry.is_once and mark is None and entry.due(0, now) == entry.schedule.until(now) else now
        self._marks.move(entry, start, now)
        self._marks.make_known(entry, now)
        return start

    def _watch_last_runs(self, entry: ScheduledEntry, memory: _Memory, now: int, most: int = MOST_WATCHED) -> None:
        """The messages of the last slots may be lost, whoever published them."""
        at = entry.schedule.until(min(memory.settled, now))
        oldest = now - round(LONGEST_LOSS * self._republish_after * MICROS)
        for _ in range(1 if entry.is_exclusive else most):
            if at is None or at < oldest:
                break
            self._watch_for_loss(memory, entry.slot(at), now)
            at = entry.schedule.until(at - 1)

    # -- one look --------------------------------------------------------------------------------------------------

    def _settle(self, entry: ScheduledEntry, memory: _Memory, now: int, publish: Publish) -> float | None:
        """Settle the open slots; None when none is open any more, else in how many seconds to look again."""
        for _ in range(MOST_AT_ONCE):
            looked = since_boot()
            mark = self._marks.read(entry)
            if mark is None:
                mark = self._restore(entry, memory, now)
            if mark > memory.settled:
                memory.settled = mark
                self._watch_last_runs(entry, memory, now, 1)  # another scheduler published it, and may die
            first = entry.due(memory.settled, now)
            if first is None:
                return None
            run = self._store.get(entry.slot(first).run_key) if self._tracked else None
            if run is not None and has_run_out(run) and since_boot() - self._last_failure < LONGEST_GRACE:
                return BUSY  # the store was away, so nobody could renew it: it may live
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
        published = self._publish(slot, looked, publish)
        if published is None:
            return BUSY  # another scheduler has it in hand
        up_to = ALWAYS if entry.is_once else decision.fire
        first = self._move(entry, up_to, memory, now)
        if published:
            self._tell("scheduled", slot)
            for kind in decision.told:
                self._tell(kind, slot, detail=f"{(now - slot.at) / MICROS:.1f} s after its time")
        if first and decision.missed:
            self._tell("slot_missed", slot, detail=f"{decision.missed} before it")
        if first and decision.skipped:
            self._tell_skipped(entry, before, decision.fire - 1, run)
        if self._tracked:
            self._watch_for_loss(memory, slot, now)
        return None

    def _pass_over(
        self, entry: ScheduledEntry, decision: Decision, memory: _Memory, now: int, run: Entry | None
    ) -> None:
        before = memory.settled
        up_to = ALWAYS if entry.is_once and decision.published else decision.up_to
        if not self._move(entry, up_to, memory, now):
            return
        slot = entry.slot(decision.up_to)
        if decision.missed:
            self._tell("slot_missed", slot, detail=f"{decision.missed} up to it")
        if decision.skipped and run is not None:
            self._tell_skipped(entry, before, decision.up_to, run)
            in_a_row = skipped_in_a_row(entry, run, before, decision.up_to)
            if in_a_row:
                self._tell("slots_blocked", slot, by=run, detail=f"{in_a_row} slots in a row were skipped")

    def _tell_skipped(self, entry: ScheduledEntry, before: int, up_to: int, run: Entry | None) -> None:
        for at in entry.boundaries(before, up_to):
            self._tell("slot_skipped", entry.slot(at), by=run)

    def _move(self, entry: ScheduledEntry, to: int, memory: _Memory, now: int) -> bool:
        first = self._marks.move(entry, to, now)
        memory.settled = max(memory.settled, to)
        return first

    # -- publishing ------------------------------------------------------------------------------------------------

    def _publish(self, slot: Slot, looked: float, publish: Publish) -> bool | None:
        """True if this call published the slot, False if it was published before, None if somebody is at it."""
        claim = Claim(
            slot.run_key,
            slot.job_id,
            new_attempt(),
            state="queued" if self._tracked else "running",
            lease=CLAIM,
            keep_for=slot.keep_for,
            payload=slot.payload,
        )
        answer = self._store.claim(claim)
        if isinstance(answer, Completed):
            return False
        if isinstance(answer, Held):
            mine = answer.owner == slot.job_id
            return False if mine and self._is_published(slot, answer) else None
        if since_boot() - looked > CLAIM:
            # This process slept, and what it had read of the mark may be long over.
            self._store.release(answer, Ending(keep_for=slot.keep_for))
            return None
        try:
            publish(slot)
        except BaseException:
            self._store.release(answer, Ending(keep_for=slot.keep_for))
            raise
        return True if self._say_published(slot, answer) or self._is_in_other_hands(slot) else None

    def _is_published(self, slot: Slot, held: Held) -> bool:
        if held.state == "running":
            return self._tracked
        found = self._store.get(slot.run_key)
        return found is not None and found.owner == slot.job_id and found.copies > 0

    def _say_published(self, slot: Slot, lease: Lease) -> bool:
        """Whether that is known now. It is refused if the claim is over, and a worker or another scheduler has it."""
        if not self._tracked:
            self._store.complete(lease, Ending(how="succeeded", keep_for=slot.keep_for))
            return True  # nobody would recognise a second message
        longest = self._queued_for + slot.entry.begins_after
        seconds = min(longest, slot.entry.expires_after or longest)
        return self._store.mark([(lease, seconds)], copy_for=self._lost_after(slot.entry))[0]

    def _is_in_other_hands(self, slot: Slot) -> bool:
        """Whether a worker has the job, or another scheduler has published it, while this one slept.

        One that has only claimed it may die before it publishes. Then nobody would look for this message, should it be
        lost: the slot stays open until it is known.
        """
        run = self._store.get(slot.run_key)
        if run is None:
            return False
        return run.owner != slot.job_id or run.state != "queued" or run.copies > 0

    def _cancel(self, run: Entry, by: Slot) -> None:
        """End the run that is in the way, for good. Its body is told when it next renews its lease."""
        ending = Ending(how="revoked", keep_for=by.keep_for)
        self._store.release(Claimant(run.key, run.owner, run.attempt), ending, anyway=True)
        self._tell("slot_cancelled", by, by=run)

    # -- lost messages ---------------------------------------------------------------------------------------------

    def _lost_after(self, entry: ScheduledEntry) -> float:
        return self._republish_after + entry.begins_after

    def _watch_for_loss(self, memory: _Memory, slot: Slot, now: int) -> None:
        if self._tracked:
            look_at = now + round(self._lost_after(slot.entry) * MICROS)
            memory.unfinished.setdefault(slot.run_key, (slot, look_at))

    def _look_for_lost_messages(self, entry: ScheduledEntry, memory: _Memory, now: int, publish: Publish) -> None:
        for key, (_, look_at) in list(memory.unfinished.items()):
            if look_at > now:
                continue
            run = self._store.get(key)
            slot = _slot_of(entry, run)
            if run is None or run.state != "queued" or run.remaining <= 0 or not run.copies or slot is None:
                del memory.unfinished[key]
                continue
            self._republish_if_lost(slot, publish)
            memory.unfinished[key] = (slot, now + round(self._lost_after(entry) * MICROS))

    def _republish_if_lost(self, slot: Slot, publish: Publish) -> None:
        """The store says to one of all those who ask that the message is overdue; that one publishes it again."""
        probe = Claim(
            slot.run_key,
            "probe",
            new_attempt(),
            state="queued",
            lease=NO_TIME,
            keep_for=slot.keep_for,
            copy_for=self._lost_after(slot.entry),
        )
        answer = self._store.claim(probe)
        if isinstance(answer, Lease):
            self._store.release(answer, Ending(keep_for=slot.keep_for))
        elif isinstance(answer, Held) and answer.publish and answer.owner == slot.job_id:
            publish(slot)
            self._store.mark([(answer, answer.remaining)], copy_for=self._lost_after(slot.entry))
            self._tell("slot_republished", slot)

    # -- the rest --------------------------------------------------------------------------------------------------

    def _pause(self, entry: ScheduledEntry, memory: _Memory, now: int) -> float:
        following = None if memory.settled >= ALWAYS else entry.due(max(memory.settled, 0), ALWAYS)
        moments = [look_at for _, look_at in memory.unfinished.values()]
        if following is not None:
            moments.append(following)
        soonest = min(moments, default=now + round(LONGEST_PAUSE * MICROS))
        return min(LONGEST_PAUSE, max(0.0, (soonest - now) / MICROS))

    def _tell(self, kind: Kind, slot: Slot, *, by: Entry | None = None, detail: str = "") -> None:
        when = f"slot {slot.scheduled_for.isoformat()}"
        self._listeners.tell(
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


def _slot_of(entry: ScheduledEntry, run: Entry | None) -> Slot | None:
    """The slot that a run is for, if it is one of this entry as it is now."""
    if run is None or not run.payload.isdigit():
        return None
    slot = entry.slot(int(run.payload))
    return slot if slot.job_id == run.owner else None
