"""A guarded task's job, as the worker's parent process has it: its key, its place in the queue, its slot."""

from __future__ import annotations

from typing import Any

from taskguard.celery.answer import claimant_of_call
from taskguard.celery.guarding import Guarding, TaskGuard
from taskguard.celery.request import in_front_of
from taskguard.celery.scheduled import leave_end
from taskguard.celery.settling import Settlement
from taskguard.places import job_of, place_of, run_of
from taskguard.store import Claimant, Ending, How


class GuardedSettlement(Settlement):
    @property
    def _guarded(self) -> TaskGuard:
        guarded: TaskGuard = self._request.task.taskguard
        return guarded

    @property
    def guarding(self) -> Guarding:
        return self._guarded.guarding

    def _entries(self) -> tuple[str, str]:
        """The entry of this job's run, and that of its place in the queue if it is another one."""
        headers, keys, policy = self.headers, self._guarded.keys, self._guarded.policy
        given = headers.idempotency_key
        key = headers.key or (keys.explicit(given) if given else keys(self._request._args, self._request._kwargs))
        note = self.note
        run = run_of(policy, key, headers.join or self.id)
        if note is not None and note.overlap == "allow_all":
            run = job_of(key, self.id)
        place = headers.place or place_of(policy, key)
        return run, place if place != run else ""

    def end(self, how: How, error: BaseException | None, anyway: bool) -> bool:
        guard, policy = self.guarding.calls, self._guarded.policy
        outcome = None if error is None else guard.outcomes.encode_error(error)
        # A failure that the parent settles is one that Celery's parent answers.
        ending = Ending(how=how, keep_for=policy.keep, outcome=outcome, answered=how == "failed")
        run, place = self._entries()
        claimant = Claimant(run, self.id, self.attempt)
        if how == "failed" and policy.on_done == "reuse":
            done = guard.store.complete(claimant, ending)
        else:
            done = guard.store.release(claimant, ending, anyway=anyway)
        if ending.answered and self.headers.call:
            guard.store.release(claimant_of_call(self.headers, self.attempt), ending, anyway=True)
        if place and (done or anyway):
            guard.store.release(Claimant(place, self.id, self.attempt), Ending(keep_for=policy.keep), anyway=True)
        note = self.note
        if note is not None:
            leave_end(self.guarding, note, self.id, how, self.attempt)
        if done:
            guard.tell("failed" if how == "failed" else "released", claimant, detail=f"{how}; settled by the parent")
        return done

    def put_into_queue(self, keep_starts: bool) -> bool:
        claimant = Claimant(self._entries()[0], self.id, self.attempt)
        calls, settings = self.guarding.calls, self.guarding.settings
        done = calls.store.requeue(
            claimant, settings.queued_for, copy_for=settings.republish_after, keep_starts=keep_starts
        )
        note = self.note
        if done and note is not None:
            run = Claimant(note.run, self.id, self.attempt)
            calls.store.requeue(run, settings.queued_for, copy_for=settings.republish_after)
        if done:
            calls.tell("requeued", claimant, detail="settled by the parent")
        return done


def guarded_request(base: type) -> type:
    return in_front_of(base, _settlement)


def _settlement(request: Any) -> Settlement:
    return GuardedSettlement(request)
