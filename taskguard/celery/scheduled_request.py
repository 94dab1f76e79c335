"""The job of a plain task that a schedule made, as the worker's parent process has it. Any other job is left alone.

Without it the run of a slot whose child is gone would last until its lease is over, and a scheduler could not tell one
that Celery has given up (killed for its time limit, say) from one whose whole worker died.
"""

from __future__ import annotations

from taskguard.celery.guarding import Guarding, guarding_of, is_installed
from taskguard.celery.settling import SettlingRequest, in_front_of
from taskguard.store import Claimant, Ending, How


class ScheduledRequest(SettlingRequest):
    def _is_watched(self) -> bool:
        return is_installed(self.task.app) and self._note() is not None

    @property
    def _guarding(self) -> Guarding:
        return guarding_of(self.task.app)

    def _end(self, how: How, error: BaseException | None, anyway: bool) -> bool:
        note = self._note()
        assert note is not None
        ending = Ending(how=how, keep_for=note.keep_for)
        return self._guarding.calls.store.release(
            Claimant(note.run, self.id, self._attempt), ending, anyway=anyway or how == "revoked"
        )

    def _put_into_queue(self, keep_starts: bool) -> bool:
        note, settings = self._note(), self._guarding.settings
        assert note is not None
        return self._guarding.calls.store.requeue(
            Claimant(note.run, self.id, self._attempt),
            settings.queued_for,
            copy_for=settings.republish_after,
            keep_starts=keep_starts,
        )


def scheduled_request(base: type) -> type:
    return in_front_of(base, ScheduledRequest)
