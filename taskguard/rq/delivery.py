"""One delivery of a guarded job, where its body runs: which job it is, which entries it has, and how it is put back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from rq.job import Job, JobStatus

from taskguard.clocks import since_boot
from taskguard.errors import DuplicateTaskError, StoreError, WaitTimeoutError
from taskguard.guard import Guard, new_attempt
from taskguard.places import job_of, next_of, place_of, run_of
from taskguard.policy import Policy
from taskguard.rq.clock import JobClock
from taskguard.rq.guarding import JobGuard
from taskguard.rq.note import Note
from taskguard.rq.noted import NotedJob, PutBack, noted
from taskguard.rq.owner import is_other_run, job_id_of, occurrence_of, owner_of, shown
from taskguard.rq.twin import Twin, end_queued
from taskguard.store import Claimant, Ending, Entry, Held
from taskguard.waiting import pauses

if TYPE_CHECKING:
    from taskguard.schedule import Note as SlotNote

ATTEMPT = "_taskguard_attempt"
"""On a job that a guarded worker runs: the attempt of this execution, which its parent process knows too."""

AWAY = (RedisConnectionError, RedisTimeoutError)
"""What is raised while the queue's own Redis does not answer."""
UNTIL_REDIS_IS_BACK = 3600.0
"""Neither a body that has run nor a job that has to wait is given up because Redis is away."""

_logger = logging.getLogger("taskguard")


class Delivery:
    def __init__(self, job: Job, guarded: JobGuard) -> None:
        self.guarded = guarded
        self.policy: Policy = guarded.policy
        self.guard: Guard = guarded.guard(job.connection, job.serializer)
        self.patience = UNTIL_REDIS_IS_BACK if guarded.settings.on_store_error == "retry" else 0.0
        """How long a silent Redis is asked, if that is longer than the guard's patience."""
        self.job: NotedJob = self._patiently(lambda: noted(job)).as_guarded()
        self.owner = owner_of(job.id, job.repeats_left, self.note.run)
        self.attempt: str = getattr(job, ATTEMPT, "") or new_attempt()
        self.clock = JobClock(is_own=not self.is_sync)
        self._began = since_boot()
        self.arguments = ""
        """Those of the call, where the history is to show them."""
        self.was_held = False
        """The store has said that another run has the key, whatever became of it since."""

    def find_key(self, args: Any, kwargs: Any) -> None:
        note = self.note
        if not note.key:
            keys, given = self.guarded.keys, note.idempotency_key
            key = keys.explicit(given) if given else keys(args, kwargs)
            payload = self.guarded.payload(args, kwargs) if given else self.guarded.likeness(args, kwargs)
            self.change(key=key, payload=payload)
        self.key = self.note.key
        self.arguments = self.guarded.arguments(args, kwargs)
        self.place = self.note.place or place_of(self.policy, self.key)

    @property
    def scheduled(self) -> SlotNote | None:
        """What a scheduled job is for; None for any other."""
        if self.job.note.slot is None:
            return None
        from taskguard.rq.slot import slot_of  # most jobs have none

        return slot_of(self.job)

    def known_by(self) -> tuple[str, str]:
        """What makes two runs the same work: for others, and for `fence.once`."""
        given = self.note.idempotency_key
        by_key = occurrence_of(self.job, self.owner) if self.policy.on_done == "rerun" else self.key
        if self.scheduled is not None:
            by_key = self.scheduled.key
        # Another function may be called with the same key of the caller's: its effects are others.
        return given or by_key, self.key if given else by_key

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def note(self) -> Note:
        return self.job.note

    def change(self, **facts: Any) -> None:
        """Of the note; it is written down when the job goes back to RQ."""
        self.job.note = self.job.note.with_(**facts)

    @property
    def name(self) -> str:
        """The entry of this run."""
        if self.note.is_one_of_many:
            return job_of(self.key, self.owner)
        return run_of(self.policy, self.key, self.note.join or self.owner)

    @property
    def waited(self) -> float:
        return since_boot() - self._began

    @property
    def is_sync(self) -> bool:
        """Run by a queue with `is_async=False`, in its caller's process: nothing can be put back."""
        return self.job.worker_name == "sync"

    @property
    def has_our_worker(self) -> bool:
        return hasattr(self.job, ATTEMPT)

    @property
    def is_the_next(self) -> bool:
        """The one more run of `run_once_more`."""
        return self.note.place == next_of(self.key)

    def is_this_job(self, owner: str) -> bool:
        return self.has_id_of(owner) and not is_other_run(self.note.run, owner)

    def has_id_of(self, owner: str) -> bool:
        return job_id_of(owner) == self.job.id

    # -- what RQ says ----------------------------------------------------------------------------------------------

    def status(self) -> str:
        """Empty if the job was deleted."""
        status: Any = self.job.connection.hget(self.job.key, "status")
        return str((status or b"").decode())

    def has_job(self) -> bool:
        """Whether the job is this worker's to put back: RQ has not given it to another one, and has not ended it."""
        if self.is_sync:
            return False
        self.clock.stop()  # its body is over
        found: Any = self._patiently(lambda: self.job.connection.hmget(self.job.key, "status", "worker_name"))
        status, worker = [(value or b"").decode() for value in found]
        return bool(status == JobStatus.STARTED and worker == self.job.worker_name)

    def twin(self, held: Held | Entry) -> Twin:
        """Whoever is queued, as RQ sees it: ended if RQ has given it up."""
        twin = Twin(held, self.job.connection, type(self.job), self.job.serializer)
        twin.wait_until_it_appears(self.guard.store)
        if twin.is_gone:
            twin.end(self.guard, self.policy)
        else:
            twin.enqueue_if_lost()
        return twin

    # -- what it does ----------------------------------------------------------------------------------------------

    def put_back(self, held: Held | None, why: str = "") -> PutBack:
        if self.is_sync and held is not None:
            raise DuplicateTaskError(*facts_of(held))
        reason = why or (f"it waits for {held.owner}" if held else "it is not to run now")
        _logger.info("%s[%s] is put back: %s", self.guarded.name, self.job.id, reason)
        self.clock.stop()
        self._patiently(self.job.connection.ping)  # RQ writes it down there, and asks only once
        return PutBack()

    def is_given_up(self) -> bool:
        """It was cancelled or deleted while it waited: then it leaves its place."""
        if self.is_sync:
            return False
        try:
            status = self.status()
        except RedisError:
            return False  # the queue's own Redis is away for a moment, and that is no end of a job
        if status not in ("", JobStatus.CANCELED):
            return False
        _logger.info("%s[%s] was %s while it waited", self.guarded.name, self.job.id, status or "deleted")
        ending = Ending(how="revoked" if status else "expired", keep_for=self.policy.keep)
        for name in {self.place, self.name} - {""}:
            end_queued(self.guard, self.policy, name, self.owner, ending)
        return True

    def free_place(self) -> None:
        """The job starts, or ends: the next one may take its place in the queue."""
        if not self.place or self.place == self.name:
            return
        try:
            claimant = Claimant(self.place, self.owner, new_attempt())
            self.guard.store.release(claimant, Ending(keep_for=self.policy.keep), anyway=True)
        except StoreError as error:  # whoever finds the place taken by a job that has ended takes it
            _logger.warning("the place of %s[%s] is not free yet: %s", self.guarded.name, self.job.id, error)

    def leave_refusal(self, error: Exception) -> None:
        """The job fails here, and its body never began. Unless RQ retries it, no copy of it is to run."""
        if self.job.should_retry:
            return
        self.note_end()
        # A twin that was met ends it with nothing: whoever joined this job asks for itself.
        is_twin = isinstance(error, DuplicateTaskError) and not isinstance(error, WaitTimeoutError)
        outcome = None if is_twin else self.guard.outcomes.encode_error(error)
        ending = Ending(how="skipped" if is_twin else "failed", keep_for=self.policy.keep, outcome=outcome)
        try:
            self.guard.store.release(Claimant(self.name, self.owner, self.attempt), ending, anyway=True)
        except StoreError as why:
            _logger.warning("the end of %s[%s] is not written down: %s", self.guarded.name, self.job.id, why)

    def forget_waiting(self) -> None:
        """Should RQ run it again, it waits for nobody yet."""
        if self.note.join or self.note.since:
            self.job.note = self.note.as_new()
            self._patiently(self.job.save_note)

    def note_end(self) -> None:
        """This enqueueing of the job has come to its end."""
        self._patiently(self.job.note_end)

    def _patiently(self, verb: Callable[[], Any]) -> Any:
        """Of the queue's own Redis, which may be away for a while: that is no other end of the job."""
        give_up = since_boot() + max(self.patience, self.guard.patience)
        for pause in pauses(longest=1.0):
            try:
                return verb()
            except AWAY:
                if since_boot() + pause > give_up:
                    raise
            time.sleep(pause)
        raise AssertionError("pauses never end")


def facts_of(held: Held) -> tuple[str, str, str, float, int]:
    return held.key, shown(held.owner), held.state, held.since, held.token
