"""A scheduled job, where it runs: its slot is claimed around its function, guarded or not.

The claim is that of `taskguard.schedule`: a second message of the slot is known by its id, and the run of another slot
is met as `overlap` says. A guarded function's own key is claimed inside of it, as for any other job.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rq import Queue
from rq.job import Job, JobStatus

from taskguard.events import Event
from taskguard.fence import current_fence
from taskguard.policy import Policy
from taskguard.rq.answer import NothingToTell
from taskguard.rq.clock import LONGEST_WAIT
from taskguard.rq.delivery import Delivery
from taskguard.rq.guarding import JobGuard, guard_for, guard_of
from taskguard.rq.note import NAMESPACE, Note
from taskguard.rq.noted import NotedJob, PutBack, noted
from taskguard.rq.obtaining import MARGIN, Obtaining, SlotSkipped
from taskguard.rq.owner import next_owner
from taskguard.rq.run import Run
from taskguard.rq.twin import end_queued
from taskguard.schedule import claim_of, gives_up
from taskguard.schedule.entry import Note as SlotNote
from taskguard.signatures import fence_parameter
from taskguard.store import Claim, Claimant, Completed, Ending, Held
from taskguard.switch import is_off
from taskguard.work import Work

_AFTER = ":after-"


def slot_of(job: Job) -> SlotNote | None:
    """The slot of a job that was read with its note; None if it is not scheduled."""
    return SlotNote.of(job.note.slot) if isinstance(job, NotedJob) else None


def run_in_slot(job: NotedJob, call: Callable[[], Any]) -> Any:
    """Claim the slot of the job, call its function, and tell the store how it ended."""
    slot = None if is_off() else slot_of(job)
    job.is_in_slot = True
    try:
        return call() if slot is None else _SlotRun(job, _SlotGuard(job, slot, call))((), {})
    finally:
        job.is_in_slot = False


class _SlotGuard(JobGuard):
    """What the entry of a slot is held with: the lease of the function, if it is guarded, and the default if not."""

    def __init__(self, job: NotedJob, slot: SlotNote, call: Callable[[], Any] | None = None) -> None:
        namespace = (job.note.slot or {}).get(NAMESPACE, "taskguard")
        own = guard_of(job.func) if call is not None else None
        taken = ("lease", "on_lost", "max_starts")
        chosen = {} if own is None else {name: getattr(own.policy, name) for name in taken}
        options = {"keep_for": slot.keep_for, "namespace": namespace, **chosen}
        super().__init__(_nothing, options, is_checked=True)
        self.name = str(job.func_name)
        self.slot = slot
        self._job = job
        self._call = call

    def call(self, args: Any, kwargs: Any) -> Any:
        assert self._call is not None
        name = _fence_wanted(self._job)
        if name is None:
            return self._call()
        return self._job.func(*self._job.args, **self._job.kwargs, **{name: current_fence()})


def _nothing() -> None: ...


def _fence_wanted(job: NotedJob) -> str | None:
    """The parameter of a plain function that is given the fence, unless its caller gives it."""
    function = job.func
    if not inspect.isfunction(function) or guard_for(function, job.queue_class) is not None:
        return None
    name = fence_parameter(function)
    given = inspect.signature(function).bind_partial(*job.args, **job.kwargs).arguments
    return None if name in given else name


class _SlotDelivery(Delivery):
    def __init__(self, job: Job, guarded: JobGuard) -> None:
        super().__init__(job, guarded)
        assert isinstance(guarded, _SlotGuard)
        self.slot = guarded.slot
        self.owner = job.id
        self.key, self.place = self.slot.run, ""
        self._note = Note(key=self.slot.run, after_outage=self.job.note.after_outage)
        self._is_plain = guard_for(job.func, self.job.queue_class) is None

    @property
    def note(self) -> Note:
        return getattr(self, "_note", Note())  # the job's own is that of its function

    def change(self, **facts: Any) -> None:
        self._note = self._note.with_(**facts)
        # What travels with the job is for the claim of its function too: that has not been asked for yet.
        theirs = self.job.note
        after_outage = self._note.after_outage or (theirs.after_outage and not self._is_plain)
        self.job.note = theirs.with_(floor=max(self._note.floor, theirs.floor), after_outage=after_outage)

    def find_key(self, args: Any, kwargs: Any) -> None:
        pass

    @property
    def name(self) -> str:
        return self.slot.run

    def is_this_job(self, owner: str) -> bool:
        return self.has_id_of(owner)

    def has_id_of(self, owner: str) -> bool:
        return owner.partition(_AFTER)[0] == self.job.id


class _SlotObtaining(Obtaining):
    _it: _SlotDelivery

    def _claim(self) -> Claim:
        it = self._it
        return replace(claim_of(it.slot, it.owner, it.policy.lease, it.attempt), floor=it.job.note.floor)

    def _is_for_another_store(self) -> bool:
        return False

    def _is_over_by_now(self, done: Completed) -> bool:
        return done.how == "failed" and super()._is_over_by_now(done)

    def _patience_with(self, held: Held) -> float:
        it = self._it
        if gives_up(it.slot, held, self._claim(), it.guard.store) and not it.is_this_job(held.owner):
            raise SlotSkipped(held)
        return min(it.policy.lease + MARGIN, LONGEST_WAIT)


class _SlotRun(Run):
    it: _SlotDelivery

    def __init__(self, job: Job, guarded: _SlotGuard) -> None:
        super().__init__(job, guarded, _SlotDelivery)

    def __call__(self, args: Any, kwargs: Any) -> Any:
        try:
            return self._run(args, kwargs)
        except SlotSkipped as skipped:
            if skipped.held is not None:
                self._tell_of(skipped.held)
            return None

    def _obtain(self) -> Work | Completed | PutBack:
        found = _SlotObtaining(self.it)()
        if isinstance(found, Completed) and found.how == "skipped":
            raise SlotSkipped(None)
        return found

    def _let_go(self, error: BaseException) -> None:
        settle_slot(self.job, self.it.attempt, is_stopped=False)

    def _fail(self, work: Work, error: BaseException) -> bool:
        if isinstance(error, SlotSkipped):
            return work.release("skipped")
        return work.release_quietly() if isinstance(error, NothingToTell) else super()._fail(work, error)

    def _tell_of(self, held: Held) -> None:
        slot = self.it.slot
        self.it.guard.listeners.tell(
            Event(
                kind="slot_skipped",
                key=slot.schedule,
                owner=self.job.id,
                holder=held.owner,
                state=held.state,
                since=held.since,
                detail=f"slot {slot.scheduled_for.isoformat()}, at its worker",
            )
        )


# -- for a process that is gone ----------------------------------------------------------------------------------------


def settle_slot(job: Job, attempt: str, *, is_stopped: bool) -> bool:
    """Requeue the slot's run if RQ will run the job again; else end it. Whether the job is not this worker's to fail.

    Only what ran under that attempt, as the same job may be running elsewhere; without one, what is queued.
    """
    slot = SlotNote.of(noted(job).note.slot)
    if slot is None:
        return False
    assert isinstance(job, NotedJob)
    guarded = _SlotGuard(job, slot)
    guard = guarded.guard(job.connection, job.serializer)
    following = next_owner(job, job.id)
    owners = [job.id, following] if following else [job.id]
    ending = Ending(how="revoked" if is_stopped else "failed", keep_for=slot.keep_for)
    is_retried = job.should_retry and not is_stopped
    for owner in owners:
        claimant = Claimant(slot.run, owner, attempt)
        if not attempt:
            if not is_retried:
                end_queued(guard, Policy.trusted(keep_for=slot.keep_for), slot.run, owner, ending)
        elif is_retried:
            seconds = guarded.settings.queued_for + job.get_retry_interval()
            if guard.store.requeue(claimant, seconds, copy_for=seconds, keep_starts=True):
                return False
        else:
            job.note_end()
            if guard.store.release(claimant, ending):
                return False
    entry = guard.store.get(slot.run) if attempt else None
    return entry is not None and entry.state == "running" and entry.remaining > 0 and entry.owner in owners


def put_back_if_stuck(job: Job, queue: Queue) -> bool:
    """A worker died with the job in its hands, before it began: RQ gives it up for lost, and its slot is not."""
    if SlotNote.of(noted(job).note.slot) is None or job.get_status(refresh=False) != JobStatus.QUEUED:
        return False
    if job.connection.lpos(queue.intermediate_queue_key, job.id) is None:
        return False
    queue.push_job_id(job.id)
    return True
