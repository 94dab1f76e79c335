"""How a slot's job gets to the broker: claimed, published, and said to be there, in this order."""

from __future__ import annotations

from collections.abc import Callable

from taskguard.guard import new_attempt
from taskguard.protocol.store import Claim, Claimant, Completed, Ending, Held, Lease, Store
from taskguard.runtime.clocks import since_boot
from taskguard.schedule import payload
from taskguard.schedule.entry import ScheduledEntry, Slot

CLAIM = 2.0
"""Seconds that a scheduler has from the claim of a slot to its publication; then another one takes it up."""

Publish = Callable[[Slot], None]


class Publishing:
    def __init__(self, store: Store, *, tracked: bool, republish_after: float, queued_for: float) -> None:
        self._store = store
        self._tracked = tracked
        self._republish_after = republish_after
        self._queued_for = queued_for

    def lost_after(self, entry: ScheduledEntry) -> float:
        """Seconds after which a message that nobody has begun with is taken for lost."""
        return self._republish_after + entry.begins_after

    def first(self, slot: Slot, looked: float, publish: Publish) -> bool | None:
        """True if this call published the slot, False if it was published before, None if somebody is at it."""
        answer = self._claim(slot, payload.write(slot.at))
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

    def again(self, slot: Slot, publish: Publish) -> bool | Held | None:
        """Publish a slot whose run had begun and died. True if that was done, False if the run has ended by now.

        A claim that leads to nothing is left to run out, not released: what is over that way counts as begun and not
        ended, so that the next look takes it up. What was released would be forgotten.
        """
        asked = since_boot()
        answer = self._claim(slot, payload.write(slot.at, kept=True))
        if isinstance(answer, Completed):
            return False
        if isinstance(answer, Held):
            return answer
        if since_boot() - asked > CLAIM:
            return None  # this process slept, and another one is at it
        publish(slot)
        self._say_published(slot, answer)
        return True

    def give_up(self, slot: Slot) -> bool | Held:
        """End a run that had begun and died, for good. True if that was done, False if it has ended by now."""
        answer = self._claim(slot, payload.write(slot.at, kept=True))
        if isinstance(answer, Lease):
            return self._store.release(answer, Ending(how="expired", keep_for=slot.keep_for))
        return answer if isinstance(answer, Held) else False

    def revoke(self, slot: Slot) -> None:
        """End a run that had begun and died, for good, while another one is at work."""
        ending = Ending(how="revoked", keep_for=slot.keep_for)
        self._store.release(Claimant(slot.run_key, slot.job_id, new_attempt()), ending, anyway=True)

    def once_more(self, slot: Slot, held: Held, publish: Publish) -> None:
        """Publish a message that is still queued: the store has said to this process alone that it is overdue."""
        publish(slot)
        self._store.mark([(held, held.remaining)], copy_for=self.lost_after(slot.entry))

    def _claim(self, slot: Slot, says: str) -> Lease | Held | Completed:
        return self._store.claim(
            Claim(
                slot.run_key,
                slot.job_id,
                new_attempt(),
                state="queued" if self._tracked else "running",
                lease=CLAIM,
                keep_for=slot.keep_for,
                payload=says,
            )
        )

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
        return self._store.mark([(lease, seconds)], copy_for=self.lost_after(slot.entry))[0]

    def _is_in_other_hands(self, slot: Slot) -> bool:
        """Whether a worker has the job, or another scheduler has published it, while this one slept.

        One that has only claimed it may die before it publishes. Then nobody would look for this message, should it be
        lost: the slot stays open until it is known.
        """
        run = self._store.get(slot.run_key)
        if run is None:
            return False
        return run.owner != slot.job_id or run.state != "queued" or run.copies > 0
