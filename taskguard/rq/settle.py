"""Settles a job whose work horse is gone, by the attempt that died: the same job may already be running elsewhere."""

from __future__ import annotations

from rq.job import Job, JobStatus

from taskguard.places import job_of, place_of, run_of
from taskguard.rq.guarding import JobGuard
from taskguard.rq.noted import noted
from taskguard.rq.owner import job_id_of, next_owner, owner_of
from taskguard.rq.twin import end_queued
from taskguard.store import Claimant, Ending


class HorseLostError(Exception):
    """The process that ran the job is gone."""


def settle_for(
    job: Job, guarded: JobGuard, attempt: str, *, is_stopped: bool = False, error: BaseException | None = None
) -> bool:
    """Requeue its entry if RQ will run it again; else free the key. Whether the job is not this worker's to fail.

    It is not if another worker runs this very job, or if it has ended. Without an attempt the job never started: only
    its place in the queue is freed. With an *error* no process has died: that is how the job ended before its body
    began, and no start of it.
    """
    if not attempt and job.get_status(refresh=False) in (JobStatus.FINISHED, JobStatus.FAILED):
        return True  # a leftover copy of it
    lost = _Lost(job, guarded, attempt, is_stopped, error)
    if attempt and any(lost.settle(owner) for owner in lost.names):
        return False
    if attempt and lost.is_run_elsewhere():
        return True
    lost.leave_queue()
    return False


class _Lost:
    def __init__(
        self, job: Job, guarded: JobGuard, attempt: str, is_stopped: bool, error: BaseException | None
    ) -> None:
        self._job = job = noted(job).as_guarded()
        self._guarded = guarded
        self._policy = guarded.policy
        self._guard = guarded.guard(job.connection, job.serializer)
        self._attempt = attempt
        self._has_noted_end = False
        self._is_retried = job.should_retry and not is_stopped
        self._is_start = error is None
        words = "it was stopped" if is_stopped else "the process that ran it is gone"
        self._words = f"{words}; settled by its worker" if error is None else f"before its body began: {error}"
        self._ending = Ending(
            how="revoked" if is_stopped else "failed",
            keep_for=self._policy.keep,
            outcome=self._guard.outcomes.encode_error(error or HorseLostError(words)),
        )
        note, given = job.note, job.note.idempotency_key
        args = job.args if job.instance is None else (job.instance, *job.args)
        self._key = note.key or (guarded.keys.explicit(given) if given else guarded.keys(args, job.kwargs))
        self._place = note.place or place_of(self._policy, self._key)
        first = owner_of(job.id, job.repeats_left, note.run)
        following = next_owner(job, first)
        self.names = [first, following] if following else [first]
        """Whose entry it may be: the job's, or that of a later occurrence of its id (see `owner.py`)."""

    def settle(self, owner: str) -> bool:
        claimant = Claimant(self._run_of(owner), owner, self._attempt)
        return self._requeue(claimant) if self._is_retried else self._end(claimant)

    def is_run_elsewhere(self) -> bool:
        for owner in self.names:
            entry = self._guard.store.get(self._run_of(owner))
            is_running = entry is not None and entry.state == "running" and entry.remaining > 0
            if is_running and entry is not None and job_id_of(entry.owner) == self._job.id:
                return True
        return False

    def leave_queue(self) -> None:
        """The horse died before it claimed, or after it had requeued: what is queued waits for its retry, if any."""
        if self._is_retried:
            return
        for owner in self.names:
            for name in {self._place, self._run_of(owner)} - {""}:
                self._note_end()
                if end_queued(self._guard, self._policy, name, owner, self._ending):
                    self._tell_end(Claimant(name, owner, ""))

    def _note_end(self) -> None:
        """Once, whichever of the names it was: the ends of a job that is scheduled again are counted."""
        if not self._has_noted_end:
            self._has_noted_end = True
            self._job.note_end()

    def _run_of(self, owner: str) -> str:
        if self._job.note.is_one_of_many:
            return job_of(self._key, owner)
        return run_of(self._policy, self._key, self._job.note.join or owner)

    def _requeue(self, claimant: Claimant) -> bool:
        seconds = self._guarded.settings.queued_for + self._job.get_retry_interval()
        done = self._guard.store.requeue(claimant, seconds, copy_for=seconds, keep_starts=self._is_start)
        if done:
            self._guard.tell("requeued", claimant, detail=self._words)
        return done

    def _end(self, claimant: Claimant) -> bool:
        store = self._guard.store
        self._note_end()
        if self._policy.on_done == "reuse" and self._ending.how == "failed":
            done = store.complete(claimant, self._ending)
        else:
            done = store.release(claimant, self._ending)
        if done:
            self._tell_end(claimant)
            if self._place and self._place != claimant.key:
                free = Ending(keep_for=self._policy.keep)
                store.release(Claimant(self._place, claimant.owner, ""), free, anyway=True)
        return done

    def _tell_end(self, claimant: Claimant) -> None:
        how = self._ending.how
        self._guard.tell("failed" if how == "failed" else "released", claimant, detail=f"{how}; {self._words}")
