"""Settles a job whose work horse is gone, by the attempt that died: the same job may already be running elsewhere."""

from __future__ import annotations

from rq.job import Job, JobStatus

from taskguard.places import place_of, run_of
from taskguard.rq.guarding import JobGuard, guard_of
from taskguard.rq.note import Note
from taskguard.rq.owner import job_id_of, next_owner, note_end, owner_of
from taskguard.store import Claimant, Ending


class HorseLostError(Exception):
    """The process that ran the job is gone."""


def settle_for(job: Job, attempt: str, *, is_stopped: bool) -> bool:
    """Requeue its entry if RQ will run it again; else free the key. Whether the job is not this worker's to fail.

    It is not if another worker runs this very job, or if it has ended. Without an attempt the job never started: only
    its place in the queue is freed.
    """
    guarded = guard_of(job.func)
    if guarded is None:
        return False
    if not attempt and job.get_status(refresh=False) in (JobStatus.FINISHED, JobStatus.FAILED):
        return True  # a leftover copy of it
    lost = _Lost(job, guarded, attempt, is_stopped)
    settled = [lost.settle(owner) for owner in lost.names()]
    if not attempt or any(settled):
        return False
    if lost.is_run_elsewhere():
        return True
    lost.leave_queue()
    return False


def leave_queue(job: Job) -> None:
    """It was cancelled or deleted: it gives up its place."""
    guarded = guard_of(job.func)
    if guarded is not None:
        _Lost(job, guarded, "", True).leave_queue()


class _Lost:
    def __init__(self, job: Job, guarded: JobGuard, attempt: str, is_stopped: bool) -> None:
        self._job = job
        self._guarded = guarded
        self._policy = guarded.policy
        self._guard = guarded.guard(job.connection, job.serializer)
        self._attempt = attempt
        self._is_stopped = is_stopped
        self._note = note = Note.of(job.meta, job.id)
        given = note.idempotency_key
        args = job.args if job.instance is None else (job.instance, *job.args)
        self._key = note.key or (guarded.keys.explicit(given) if given else guarded.keys(args, job.kwargs))
        self._place = note.place or place_of(self._policy, self._key)
        self._first = owner_of(job.id, job.repeats_left, note.run)

    def names(self) -> list[str]:
        """Whose entry it may be: the job's, or that of a later occurrence of its id (see `owner.py`)."""
        following = next_owner(self._job, self._first) if self._attempt else ""
        return [self._first, following] if following else [self._first]

    def settle(self, owner: str) -> bool:
        claimant = Claimant(self._run_of(owner), owner, self._attempt)
        if self._job.should_retry and not self._is_stopped:
            return bool(self._attempt) and self._requeue(claimant)
        return self._end(claimant)

    def is_run_elsewhere(self) -> bool:
        for owner in self.names():
            entry = self._guard.store.get(self._run_of(owner))
            is_running = entry is not None and entry.state == "running" and entry.remaining > 0
            if is_running and entry is not None and job_id_of(entry.owner) == self._job.id:
                return True
        return False

    def leave_queue(self) -> None:
        """The horse died before it claimed, or after it had requeued: what is queued waits for its retry, if any.

        Only what is queued is ended: the receipt of an end would be that of a run elsewhere too.
        """
        if self._job.should_retry and not self._is_stopped:
            return
        for owner in self.names():
            for name in {self._place, self._run_of(owner)} - {""}:
                entry = self._guard.store.get(name)
                if entry is not None and entry.state == "queued" and entry.owner == owner:
                    self._end(Claimant(name, owner, ""))

    def _run_of(self, owner: str) -> str:
        return run_of(self._policy, self._key, self._note.join or owner)

    def _requeue(self, claimant: Claimant) -> bool:
        seconds = self._guarded.settings.queued_for + self._job.get_retry_interval()
        done = self._guard.store.requeue(claimant, seconds, copy_for=seconds, keep_starts=True)
        if done:
            self._guard.tell("requeued", claimant, detail="its horse is gone; settled by its worker")
        return done

    def _end(self, claimant: Claimant) -> bool:
        store, keep = self._guard.store, self._policy.keep
        words = "it was stopped" if self._is_stopped else "the process that ran it is gone"
        outcome = self._guard.outcomes.encode_error(HorseLostError(words))
        ending = Ending(how="revoked" if self._is_stopped else "failed", keep_for=keep, outcome=outcome)
        if claimant.attempt and self._policy.on_done == "reuse" and not self._is_stopped:
            done = store.complete(claimant, ending)
        else:
            done = store.release(claimant, ending, anyway=not claimant.attempt)
        if done:
            note_end(self._job)
            self._guard.tell("released", claimant, detail=f"{words}; settled by its worker")
            if self._place and self._place != claimant.key:
                store.release(Claimant(self._place, claimant.owner, ""), Ending(keep_for=keep), anyway=True)
        return done
