"""The job of a plain task that a schedule made, as the worker's parent process has it. Any other job is left alone.

Without it the run of a slot whose child is gone would last until its lease is over, and a scheduler could not tell one
that Celery has given up (killed for its time limit, say) from one whose whole worker died.
"""

from __future__ import annotations

from typing import Any

from taskguard.celery.guarding import Guarding, guarding_of, is_installed
from taskguard.celery.headers import SLOT, Headers
from taskguard.celery.request import in_front_of
from taskguard.celery.settling import Settlement, headers_in
from taskguard.schedule import Note
from taskguard.store import Claimant, Ending, How


class ScheduledSettlement(Settlement):
    def __init__(self, request: Any, slot: Note) -> None:
        super().__init__(request)
        self._slot = slot

    @property
    def guarding(self) -> Guarding:
        return guarding_of(self._request.task.app)

    def end(self, how: How, error: BaseException | None, anyway: bool) -> bool:
        ending = Ending(how=how, keep_for=self.guarding.keep_of(self._slot))
        claimant = Claimant(self._slot.run, self.id, self.attempt)
        return self.guarding.calls.store.release(claimant, ending, anyway=anyway or how == "revoked")

    def put_into_queue(self, keep_starts: bool) -> bool:
        settings = self.guarding.settings
        return self.guarding.calls.store.requeue(
            Claimant(self._slot.run, self.id, self.attempt),
            settings.queued_for,
            copy_for=settings.republish_after,
            keep_starts=keep_starts,
        )


def scheduled_request(base: type) -> type:
    return in_front_of(base, _settlement)


def _settlement(request: Any) -> Settlement | None:
    headers = headers_in(request)
    if not headers.get(SLOT) or not is_installed(request.task.app):
        return None  # as most are
    slot = Note.of(Headers.of(headers, request.id).slot)
    return None if slot is None else ScheduledSettlement(request, slot)
