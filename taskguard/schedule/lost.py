"""Runs that were published and have not ended: the message, the worker or both may be lost.

- The message is *queued* for too long. The store asks exactly one scheduler to republish it.
- The run started and its lease expired: its worker died. A queue that acknowledges late redelivers the message, unless
  it loses it (Redis may restore a message to a worker that is being killed at that moment). If a run stays dead for as
  long as a message may be queued, a scheduler republishes it.
- The same, but the next slot owns the run's entry by then. The entry lists the jobs that had not ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from taskguard.events import Kind
from taskguard.guard import new_attempt
from taskguard.protocol.store import Claim, Ending, Entry, Held, Lease, Store
from taskguard.runtime.outages import has_run_out
from taskguard.schedule import payload
from taskguard.schedule.boundaries import MICROS
from taskguard.schedule.entry import ScheduledEntry, Slot
from taskguard.schedule.publishing import CLAIM, Publish, Publishing
from taskguard.schedule.watermark import NO_TIME


class Report(Protocol):
    def __call__(self, kind: Kind, slot: Slot, *, by: Entry | Held | None = None, detail: str = "") -> None: ...


@dataclass
class Unfinished:
    """The runs of an entry that this process watches. It may lose all of it: the store has what counts."""

    looks: dict[str, int] = field(default_factory=dict)
    """The store entries of its runs, and when to check each."""
    overtaken: dict[str, int | None] = field(default_factory=dict)
    """Jobs that lost their entry to a later slot, and when this process first saw that; None once settled."""

    def watch(self, slot: Slot, at: int) -> None:
        self.looks.setdefault(slot.run_key, at)


class Lookout:
    def __init__(self, store: Store, publishing: Publishing, report: Report, may_live: Callable[[], bool]) -> None:
        """*may_live*: whether a run with an expired lease may be alive, since the store was just unavailable."""
        self._store = store
        self._publishing = publishing
        self._report = report
        self._may_live = may_live

    def look(self, entry: ScheduledEntry, unfinished: Unfinished, now: int, publish: Publish) -> None:
        for key, at in list(unfinished.looks.items()):
            if at > now:
                continue
            run = self._store.get(key)
            pauses = [] if run is None else self._look_at(entry, unfinished, run, now, publish)
            if pauses:
                unfinished.looks[key] = now + round(min(pauses) * MICROS)
            else:
                del unfinished.looks[key]

    def _look_at(
        self, entry: ScheduledEntry, unfinished: Unfinished, run: Entry, now: int, publish: Publish
    ) -> list[float]:
        """Seconds until the next check of this run, and of the runs that it overtook; empty if all have ended."""
        slot = slot_of(entry, run)
        pauses = [] if slot is None else self._look_at_run(slot, run, now, publish)
        if run.unended and self._look_for_overtaken(entry, unfinished, run, now, publish):
            pauses.append(self._publishing.lost_after(entry))
        return pauses

    def _look_at_run(self, slot: Slot, run: Entry, now: int, publish: Publish) -> list[float]:
        patience = self._publishing.lost_after(slot.entry)
        if run.state == "queued" and run.copies:
            if run.remaining <= 0:
                return []
            self._publish_if_overdue(slot, publish)
        elif run.state == "queued" and run.starts:  # its worker died; a scheduler is republishing it, or died doing so
            if run.remaining > 0:
                return [CLAIM]
            return self._publish_again(slot, run.since, publish, now)
        elif run.state == "running" and run.remaining <= 0:
            if not payload.is_kept(run.payload):
                return []
            left = patience + run.remaining
            if left > 0 or self._may_live():
                return [max(left, CLAIM)]
            return self._publish_again(slot, run.since, publish, now)
        elif run.state != "running":
            return []
        return [patience]

    def _publish_if_overdue(self, slot: Slot, publish: Publish) -> None:
        probe = Claim(
            slot.run_key,
            "probe",
            new_attempt(),
            state="queued",
            lease=NO_TIME,
            keep_for=slot.keep_for,
            copy_for=self._publishing.lost_after(slot.entry),
        )
        answer = self._store.claim(probe)
        if isinstance(answer, Lease):
            self._store.release(answer, Ending(keep_for=slot.keep_for))
        elif isinstance(answer, Held) and answer.publish and answer.owner == slot.job_id:
            self._publishing.once_more(slot, answer, publish)
            self._report("slot_republished", slot)

    def _publish_again(self, slot: Slot, since: float, publish: Publish, now: int) -> list[float]:
        """Republish a run that last started at *since* and died. Return the seconds until its next check."""
        patience = self._publishing.lost_after(slot.entry)
        if not slot.entry.enabled:
            return []  # it may be disabled because it kills workers
        done = self._bring_back(slot, since, publish, now)
        return [] if done is False else [patience]

    def _bring_back(self, slot: Slot, since: float, publish: Publish, now: int) -> bool | Held | None:
        """As `Publishing.again`, but give the run up if its message would have expired by now."""
        if not self._has_expired(slot, since, now):
            done = self._publishing.again(slot, publish)
            if done is True:
                self._report("slot_republished", slot, detail="its worker died, and its message was not redelivered")
            return done
        done = self._publishing.give_up(slot)
        if done is True:
            self._report("slot_missed", slot, detail="its worker died, and its message has expired")
        return done

    def _has_expired(self, slot: Slot, since: float, now: int) -> bool:
        expires = slot.entry.expires_after
        return expires is not None and now / MICROS - since > expires

    # -- overtaken -------------------------------------------------------------------------------------------------

    def _look_for_overtaken(
        self, entry: ScheduledEntry, unfinished: Unfinished, run: Entry, now: int, publish: Publish
    ) -> bool:
        """Whether an overtaken job has not ended yet."""
        if entry.timing.overlap == "cancel_other" or not entry.enabled:
            return False  # the later slot cancels them; or the entry is disabled
        known = unfinished.overtaken
        known = unfinished.overtaken = {job: known.get(job, now) for job, _ in run.unended}
        patience = self._publishing.lost_after(entry) * MICROS
        for job, says in run.unended:
            since, slot = known[job], self._slot_to_bring_back(entry, run.key, job, says, now)
            if slot is None:
                known[job] = None
            elif (has_run_out(run) and payload.is_kept(run.payload)) or self._may_live():
                break  # the run that died last goes first
            elif since is not None and now - since >= patience and self._is_over(slot, publish, now):
                known[job] = None
        return any(since is not None for since in known.values())

    def _slot_to_bring_back(self, entry: ScheduledEntry, key: str, job: str, says: str, now: int) -> Slot | None:
        """The slot of an overtaken job. None also if it may have ended so long ago that its receipt has expired."""
        at = payload.slot_in(says)
        if at is None or not payload.is_kept(says) or now - at > entry.keep_slots_for(now) * MICROS:
            return None
        return _slot_at(entry, at, job, key)

    def _is_over(self, slot: Slot, publish: Publish, now: int) -> bool:
        """Republish it if no other run holds the entry. Return whether nothing is left to do for it."""
        found = self._bring_back(slot, slot.at / MICROS, publish, now)
        if found is None:
            return False
        if not isinstance(found, Held):
            return True  # it has ended, or owns the entry again and is watched there
        if slot.entry.timing.overlap != "skip" or found.owner == slot.job_id:
            return False
        self._publishing.revoke(slot)
        self._report("slot_skipped", slot, by=found)
        return True


def slot_of(entry: ScheduledEntry, run: Entry) -> Slot | None:
    """The slot that a run is for, if it is a slot of this entry as configured now."""
    at = payload.slot_in(run.payload)
    return None if at is None else _slot_at(entry, at, run.owner, run.key)


def _slot_at(entry: ScheduledEntry, at: int, job: str, key: str) -> Slot | None:
    # If the key differs, `overlap` changed meanwhile; the worker uses the key in its message.
    slot = entry.slot(at)
    return slot if slot.job_id == job and slot.run_key == key else None
