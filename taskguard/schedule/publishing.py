"""How a slot's job gets to the broker: claim it, publish it, confirm it, in this order."""

from __future__ import annotations

from collections.abc import Callable

from taskguard.guard import new_attempt
from taskguard.protocol.store import Claim, Claimant, Completed, Ending, Held, Lease, Store
from taskguard.runtime.clocks import since_boot
from taskguard.schedule import payload
from taskguard.schedule.entry import ScheduledEntry, Slot

CLAIM = 2.0
"""Seconds that a scheduler has to publish a slot after claiming it; then another scheduler may."""

Publish = Callable[[Slot], None]


class Publishing:
    def __init__(self, store: Store, *, tracked: bool, republish_after: float, queued_for: float) -> None:
        self._store = store
        self._tracked = tracked
        self._republish_after = republish_after
        self._queued_for = queued_for

    def lost_after(self, entry: ScheduledEntry) -> float:
        """Seconds after which a message that no worker has started counts as lost."""
        return self._republish_after + entry.begins_after

    def first(self, slot: Slot, looked: float, publish: Publish) -> bool | None:
        """True if this call published the slot, False if it was published before, None if another may be at it."""
        answer = self._claim(slot, payload.write(slot.at))
        if isinstance(answer, Completed):
            return False
        if isinstance(answer, Held):
            mine = answer.owner == slot.job_id
            return False if mine and self._is_published(slot, answer) else None
        if since_boot() - looked > CLAIM:
            # This process was suspended, and the watermark that it read may be out of date.
            self._store.release(answer, Ending(keep_for=slot.keep_for))
            return None
        try:
            publish(slot)
        except BaseException:
            self._store.release(answer, Ending(keep_for=slot.keep_for))
            raise
        return True if self._say_published(slot, answer) or self._is_in_other_hands(slot) else None

    def again(self, slot: Slot, publish: Publish) -> bool | Held | None:
        """Republish a slot whose run started and died. True if that was done, False if the run has ended by now.

        A claim that leads to nothing expires and is not released: an expired run counts as started and not ended, so
        the next check finds it. A released one would be erased.
        """
        asked = since_boot()
        answer = self._claim(slot, payload.write(slot.at, kept=True))
        if isinstance(answer, Completed):
            return False
        if isinstance(answer, Held):
            return answer
        if since_boot() - asked > CLAIM:
            return None  # this process was suspended, and another one may have claimed it
        publish(slot)
        self._say_published(slot, answer)
        return True

    def give_up(self, slot: Slot) -> bool | Held:
        """End a run that started and died, for good. True if that was done, False if it has ended by now."""
        answer = self._claim(slot, payload.write(slot.at, kept=True))
        if isinstance(answer, Lease):
            return self._store.release(answer, Ending(how="expired", keep_for=slot.keep_for))
        return answer if isinstance(answer, Held) else False

    def revoke(self, slot: Slot) -> None:
        """End a run that started and died, for good, while another run holds the entry."""
        ending = Ending(how="revoked", keep_for=slot.keep_for)
        self._store.release(Claimant(slot.run_key, slot.job_id, new_attempt()), ending, anyway=True)

    def once_more(self, slot: Slot, held: Held, publish: Publish) -> None:
        """Republish a queued message: the store has asked only this process to do so."""
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
        """Confirm the message; False if the claim has expired, and a worker or another scheduler has the run."""
        if not self._tracked:
            self._store.complete(lease, Ending(how="succeeded", keep_for=slot.keep_for))
            return True  # no worker would recognise a second message
        longest = self._queued_for + slot.entry.begins_after
        seconds = min(longest, slot.entry.expires_after or longest)
        return self._store.mark([(lease, seconds)], copy_for=self.lost_after(slot.entry))[0]

    def _is_in_other_hands(self, slot: Slot) -> bool:
        """Whether a worker took the job, or another scheduler published it, while this process was suspended.

        A scheduler that has only claimed it may die before it publishes. Then no scheduler would notice if this message
        was lost, so the slot stays open until the message is confirmed.
        """
        run = self._store.get(slot.run_key)
        if run is None:
            return False
        return run.owner != slot.job_id or run.state != "queued" or run.copies > 0
