"""One delivery of a guarded job, where its body runs: which job it is, which entries it has, and how it is put back."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import Any, NoReturn

from taskguard.celery.call import Call
from taskguard.celery.guarding import Guarding, TaskGuard
from taskguard.celery.headers import ATTEMPT
from taskguard.celery.message import Message
from taskguard.errors import LeaseLostError, StoreError
from taskguard.guard import Guard, new_attempt
from taskguard.interrupt import came_by_signal
from taskguard.places import job_of, next_of, place_of, run_of
from taskguard.policy import Policy
from taskguard.schedule import Note
from taskguard.store import Claimant, Ending, How

ENDED = "_taskguard_ended"
"""On the request of a job whose end is in the store: how it ended."""

_logger = logging.getLogger("taskguard")
in_hand: ContextVar[Delivery | None] = ContextVar("taskguard_celery_run", default=None)


def running() -> Delivery | None:
    """The delivery whose body this code is part of."""
    return in_hand.get()


class Delivery:
    claim: Claimant
    """This delivery, as the store knows it: what it was last asked for."""

    def __init__(self, task: Any, request: Any) -> None:
        self.task = task
        self.guarded: TaskGuard = task.taskguard
        self.policy: Policy = self.guarded.policy
        self.guarding: Guarding = self.guarded.guarding
        self.guard: Guard = self.guarding.guard
        self.message = Message(task, request)
        self.request = request
        self.id = self.message.id
        self.attempt: str = getattr(request, ATTEMPT, "") or new_attempt()
        """Made by the worker's parent process; an eager call has none of its own."""
        self.scheduled = Note.of(self.message.headers.slot)
        """What a scheduled job is for; None for any other."""
        self.held_back: list[Call] = []
        """Messages under this very id that the body wants sent (a retry, a replacement): they leave after it."""
        self.was_held = False
        """The store has said that another run has the key, whatever became of it since."""
        self.replaced_by_itself = False
        """Replaced by work at whose end the same task runs under the same id."""

    def find_key(self, args: Any, kwargs: Any) -> None:
        headers = self.message.headers
        if not headers.key:
            keys, given = self.guarded.keys, headers.idempotency_key
            key = keys.explicit(given) if given else keys(args, kwargs)
            payload = self.guarded.payload(args, kwargs, explicit=bool(given))
            self.message.headers = headers = headers.with_(id=self.id, key=key, payload=payload)
        self.key = headers.key
        self.arguments = self.guarded.arguments(args, kwargs)
        self.place = headers.place or place_of(self.policy, self.key)
        self.name = run_of(self.policy, self.key, headers.join or self.id)
        if self.scheduled is not None and self.scheduled.overlap == "allow_all":
            self.name = job_of(self.key, self.id)
        self.claim = Claimant(self.name, self.id, self.attempt)

    def known_by(self) -> tuple[str, str]:
        """What makes two runs the same work: for others, and for `fence.once`."""
        given = self.message.headers.idempotency_key
        by_key = self.id if self.policy.on_done == "rerun" else self.key
        if self.scheduled is not None:
            by_key = self.scheduled.key
        # Another task may be called with the same key of the caller's: its effects are others.
        return given or by_key, self.key if given else by_key

    # -- what it is ------------------------------------------------------------------------------------------------

    def change(self, **facts: Any) -> None:
        """Of the headers; they travel with the next message of the job."""
        self.message.headers = self.message.headers.with_(**facts)

    @property
    def is_awaited(self) -> bool:
        # Nobody holds the handle of a scheduled call.
        return self.message.is_awaited if self.scheduled is None else self.message.is_linked

    @property
    def is_the_next(self) -> bool:
        """The one more run of `run_once_more`."""
        place = self.message.headers.place
        return bool(place) and place == next_of(self.key)

    @property
    def conflict(self) -> str:
        """What becomes of it if another job is running."""
        conflict = self.policy.on_conflict.run
        if self.scheduled is not None:  # of a scheduled job that is the schedule's to say
            return "skip" if self.scheduled.overlap == "skip" else "wait"
        if conflict == "skip" and (self.policy.hold == "one_queued_one_running" or self.is_the_next):
            return "wait"  # it has a place in the queue for the very purpose of running after the other one
        return conflict

    def is_cancelled_by(self, error: BaseException) -> bool:
        """Whether the body was told that the run of its slot is over: the next slot was to end it."""
        return self.scheduled is not None and isinstance(error, LeaseLostError) and error.key == self.scheduled.run

    # -- what it does ----------------------------------------------------------------------------------------------

    def hold_back(self, call: Call) -> Any:
        self.held_back.append(call)
        return self.guarding.app.AsyncResult(self.id)

    def put_back(self, why: str, *, within: float = float("inf")) -> NoReturn:
        self.message.put_back(f"{self.key}: {why}", longest=self.guarding.longest_delay, within=within)

    def free_place(self) -> None:
        """The job starts, or ends: the next one may take its place in the queue."""
        if not self.place or self.place == self.name:
            return
        ending = Ending(keep_for=self.policy.keep)
        try:
            self.guard.store.release(Claimant(self.place, self.id, new_attempt()), ending, anyway=True)
        except StoreError as error:  # whoever finds the place taken for too long publishes this job again, and here
            _logger.warning("the place of %s[%s] is not free yet: %s", self.task.name, self.id, error)

    def leave_receipt(self, how: How, outcome: bytes | None) -> None:
        """This job ends here, whether it has a lease or not: a leftover copy of it must find that out."""
        ending = Ending(how=how, keep_for=self.policy.keep, outcome=outcome)
        store = self.guard.store
        try:
            if how == "failed" and self.policy.on_done == "reuse" and store.complete(self.claim, ending):
                return  # it had one
            store.release(self.claim, ending, anyway=True)
        except StoreError as error:
            _logger.warning("the end of %s[%s] is not written down: %s", self.task.name, self.id, error)

    def leave_failure(self, error: BaseException) -> None:
        """This job has failed, and its body was not what failed."""
        try:
            outcome = self.guarding.outcomes.encode_error(error)
        except Exception as why:  # it is too long, say: it has failed all the same
            if came_by_signal(why):
                raise
            self.guard.tell("not_kept", self.claim, detail=str(why))
            outcome = None
        self.leave_receipt("failed", outcome)
        self.note_end("failed")

    def note_end(self, how: How) -> None:
        """For the task, which marks it as answered once Celery has done so."""
        if self.message.is_linked:
            setattr(self.request, ENDED, (self.claim, how))
