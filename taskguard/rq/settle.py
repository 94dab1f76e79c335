"""Settles a job whose work horse died, by the attempt that died: the same job may already run elsewhere."""

from __future__ import annotations

from rq import Queue
from rq.job import Job, JobStatus

from taskguard.engine.layers import Layer
from taskguard.engine.parent import Gone
from taskguard.engine.settle import end_queued
from taskguard.events import Kind
from taskguard.protocol.store import Claimant, Ending, How
from taskguard.rq.claims import JobClaims, arguments_of
from taskguard.rq.guarded_job import GuardedJob, as_guarded_job
from taskguard.rq.guarding import JobGuard
from taskguard.rq.owner import next_owner
from taskguard.schedule.note import Note


class HorseLostError(Exception):
    """The process that ran the job died."""


def settle_for(job: Job, guarded: JobGuard | None, attempt: str, *, is_stopped: bool = False) -> bool:
    """Requeue its entries if RQ will retry it; else release them. Return True if this worker must not fail the job.

    That is so if another worker runs the same job, or if the job has ended. Without an attempt the job never started:
    then only its queue entry is released.
    """
    if guarded is None and Note.of(as_guarded_job(job).envelope.slot) is None:
        return False
    if not attempt and guarded is not None and job.get_status(refresh=False) in (JobStatus.FINISHED, JobStatus.FAILED):
        return True  # this is a leftover copy
    lost = _Lost(as_guarded_job(job).take_in_hand(), guarded, attempt, is_stopped)
    if attempt and lost.settle():
        return False
    if attempt and lost.is_run_elsewhere():
        return True
    lost.leave_queue()
    return False


class _Lost:
    def __init__(self, job: GuardedJob, guarded: JobGuard | None, attempt: str, is_stopped: bool) -> None:
        self._job = job
        self._attempt = attempt
        self._is_retried = job.should_retry and not is_stopped
        self._how: How = "revoked" if is_stopped else "failed"
        self._error = HorseLostError("it was stopped" if is_stopped else "the process that ran it died")
        self._words = f"{self._error}; settled by its worker"
        if guarded is not None:
            job.envelope = guarded.identified(job.envelope, arguments_of(job), job.kwargs)
        self._claims = JobClaims(job, guarded)
        self._guards = self._claims.guards()
        self._has_recorded_end = False
        self._candidates = self._all_candidates()
        """What it may have claimed: as this job, or as a later occurrence of its id (see `owner.py`)."""

    def _all_candidates(self) -> list[tuple[Layer, ...]]:
        claims, job = self._claims, self._job
        layers = claims.layers(job.envelope)
        later = next_owner(job, claims.owner)
        later_slot = next_owner(job, job.id) if claims.slot is not None else ""
        if not later and not later_slot:
            return [layers]
        claims.owner = later or claims.owner
        return [layers, claims.layers(job.envelope, later_slot)]

    def settle(self) -> bool:
        """Settle by the attempt that died; False if the store has no run of it."""
        for layers in self._candidates:
            queue_entry = self._claims.queue_entry()
            gone = Gone(
                layers=layers, queue_entry=queue_entry if queue_entry != layers[-1].entry else "", attempt=self._attempt
            )
            if self._is_retried:
                terms, delay = self._claims.terms(), self._job.get_retry_interval()
                done = gone.requeue(self._guards, terms, keep_starts=True, delay=delay, detail=self._words)
            else:
                self._record_end()
                done = gone.end(self._guards, self._how, self._error, detail=self._words)
            if done:
                return True
        return False

    def is_run_elsewhere(self) -> bool:
        for layers in self._candidates:
            for layer, guard in zip(layers, self._guards, strict=True):
                entry = guard.store.get(layer.entry)
                is_running = entry is not None and entry.state == "running" and entry.remaining > 0
                if is_running and entry is not None and self._claims.is_this_job(entry.owner):
                    return True
        return False

    def leave_queue(self) -> None:
        """Release the queued entries, unless RQ retries the job: the horse died before its claim or after a requeue."""
        if self._is_retried:
            return
        queue_entry = self._claims.queue_entry()
        for layers in self._candidates:
            for layer, guard in zip(layers, self._guards, strict=True):
                names = {layer.entry, queue_entry} - {""} if layer.slot is None else {layer.entry}
                for name in names:
                    self._record_end()
                    error = self._error if layer.slot is None else None
                    outcome = guard.outcomes.encode_error(error) if error is not None else None
                    ending = Ending(how=self._how, keep_for=layer.policy.keep, outcome=outcome)
                    if end_queued(guard, name, layer.owner, ending):
                        kind: Kind = "failed" if self._how == "failed" else "released"
                        guard.report(kind, Claimant(name, layer.owner, ""), detail=self._words)

    def _record_end(self) -> None:
        """Record the end once, under whichever name: the ends of a job that is scheduled again are counted."""
        if not self._has_recorded_end:
            self._has_recorded_end = True
            self._job.record_end()


def defer_if_stuck(job: Job, queue: Queue) -> bool:
    """Defer the job of a slot whose worker died before it started: RQ would fail it, but the slot is still open."""
    if Note.of(as_guarded_job(job).envelope.slot) is None or job.get_status(refresh=False) != JobStatus.QUEUED:
        return False
    if job.connection.lpos(queue.intermediate_queue_key, job.id) is None:
        return False
    queue.push_job_id(job.id)
    return True
