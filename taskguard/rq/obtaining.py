"""How a delivery gets its key: it asks, and waits in its work horse if it has to, for a while.

RQ delays nothing without a scheduler. So what cannot run now waits here; then it is **put back**: enqueued again under
the same id, at the end of its queue, so that other jobs have their turn.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from taskguard.errors import ConfigurationError, DuplicateTaskError, PayloadMismatchError, WaitTimeoutError
from taskguard.places import is_queued
from taskguard.rq.clock import LONGEST_WAIT
from taskguard.rq.delivery import Delivery, facts_of
from taskguard.rq.noted import PutBack
from taskguard.rq.owner import next_owner, shown
from taskguard.store import Claim, Completed, Held
from taskguard.waiting import pauses
from taskguard.work import Work

BEHIND = 1.0
"""A job that gives way to one in the queue waits so long; that one may be behind it in this very queue."""
MARGIN = 1.0
OTHER_STORE = 5.0
"""Seconds that a job waits whose caller looks at another store than this worker."""

_logger = logging.getLogger("taskguard")


class SlotSkipped(Exception):  # noqa: N818 - no error: another run lasts, and nobody waits for a scheduled job
    def __init__(self, held: Held | None) -> None:
        super().__init__(held)
        self.held = held
        """Whose run lasts; None if that was said before, and this is a second message."""


class Obtaining:
    def __init__(self, delivery: Delivery) -> None:
        self._it = delivery
        self._is_requeued = False
        """By somebody's hand, from the registry of failed jobs: that is an order to run, and no duplicate."""
        self._has_spent_time = False
        """The time of the job went on while it waited."""

    def __call__(self) -> Work | Completed | PutBack:
        """Ask until the key is ours or the work has ended; or, after a while, give the turn to other jobs."""
        it, held = self._it, None
        if self._is_for_another_store():
            return it.put_back(None, "its caller looks at another store")
        claim = self._claim()
        for pause in pauses(longest=1.0):
            patience = BEHIND
            if not self._gives_way_to_the_one_it_joins():
                answer = self._begin(claim, tell=held is None)  # once is enough while it waits
                if isinstance(answer, Completed) and self._is_over_by_now(answer):
                    claim = self._claim()
                    continue
                if not it.policy.enforce and not isinstance(answer, Work):
                    return self._beside()
                if not isinstance(answer, Held):
                    return self._with_its_whole_time(answer)
                held, it.was_held = answer, True
                patience = self._patience_with(held)
                claim = self._claim()  # it may join somebody now
                if patience < 0:
                    claim = replace(claim, replace_queued=True)
                    continue
            if it.waited + pause > self._most(patience):
                return it.put_back(held)
            time.sleep(pause)
            if it.is_given_up():
                return it.put_back(held)  # which RQ does not have any more, and so does nothing
        raise AssertionError("pauses never end")

    # -- asking ----------------------------------------------------------------------------------------------------

    def _claim(self) -> Claim:
        it = self._it
        claim = it.guard.new_claim(
            it.name,
            it.owner,
            it.policy,
            attempt=it.attempt,
            join=it.note.join,
            payload=it.note.payload,
            floor=it.note.floor,
        )
        return replace(claim, reuse="success") if self._is_requeued and claim.reuse == "anything" else claim

    def _begin(self, claim: Claim, tell: bool = True) -> Work | Held | Completed:
        it = self._it
        given = it.note.idempotency_key
        idempotency_key, effect = it.known_by()
        answer = it.guard.begin(
            claim,
            it.policy,
            idempotency_key=idempotency_key,
            effect_key=effect,
            scheduled_for=it.scheduled.scheduled_for if it.scheduled else None,
            schedule=it.scheduled.schedule if it.scheduled else "",
            tell=tell,
            arguments=it.arguments,
            before_too_many=lambda: it.job.note_end(for_good=True),
            after_outage=it.note.after_outage,
        )
        it.change(after_outage=False)
        if isinstance(answer, Work) or not it.policy.enforce:
            return answer
        if given and answer.payload and it.note.payload != answer.payload:
            raise PayloadMismatchError(answer.key, shown(answer.owner))
        return answer

    def _beside(self) -> Work | Completed | PutBack:
        """For a body that runs whoever holds the key (`enforce=False`): it has a fence of its own."""
        it = self._it
        name = f"{it.key}:beside:{it.attempt}"
        answer = self._begin(it.guard.new_claim(name, it.owner, it.policy, attempt=it.attempt, floor=it.note.floor))
        return it.put_back(answer) if isinstance(answer, Held) else answer

    def _is_over_by_now(self, done: Completed) -> bool:
        """Whether the end that was found is that of an earlier occurrence of this id; then this is the next one."""
        it, again = self._it, self._it.job.is_scheduled_again
        if done.owner != it.owner or (done.how == "succeeded" and not again):
            return False
        following = next_owner(it.job, it.owner)
        it.owner = following or it.owner
        self._is_requeued = bool(following) and not again
        return bool(following)

    def _is_for_another_store(self) -> bool:
        it = self._it
        if not it.guarded.is_for_another_store(it.guard, it.note, it.job.connection):
            return False
        problem = (
            f"{it.guarded.name}[{it.job.id}] was called by a process that looks at another store than "
            f"{it.guard.store!r}; give both the same store and namespace"
        )
        if it.is_sync:
            raise ConfigurationError(problem)  # nothing can be put back
        _logger.error("%s. The job waits", problem)
        it.clock.stop()
        time.sleep(OTHER_STORE)
        return True

    # -- waiting ---------------------------------------------------------------------------------------------------

    def _most(self, patience: float) -> float:
        """How long it may wait. Its own time stands still meanwhile; where that cannot be, half of it at most."""
        timeout = self._it.job.timeout or 0
        if self._it.clock.stop() or timeout <= 0:
            return patience
        self._has_spent_time = True
        return min(patience, timeout / 2)

    def _with_its_whole_time(self, answer: Work | Completed) -> Work | Completed | PutBack:
        it = self._it
        it.clock.start()
        if not self._has_spent_time or isinstance(answer, Completed) or it.is_sync:
            return answer
        seconds = it.guarded.settings.queued_for
        answer.requeue(seconds, copy_for=seconds)
        return it.put_back(None, "it has waited, and comes again with all of its time")

    def _patience_with(self, held: Held) -> float:
        """How long to wait here for the one who holds the key. Negative: not at all, its place can be taken."""
        it = self._it
        longest = min(it.policy.lease + MARGIN, LONGEST_WAIT)
        if it.is_this_job(held.owner):
            return longest  # this very job, elsewhere: never run beside it, and never dropped, for it may die
        if held.state == "queued":
            return self._patience_with_queued(held)
        conflict = self._conflict()
        if conflict == "raise" or it.is_sync:
            raise DuplicateTaskError(*facts_of(held))
        if conflict == "skip" and it.scheduled is not None:
            raise SlotSkipped(held)
        if conflict == "skip":
            it.change(join=held.owner)
        else:
            self._wait_no_longer_than_told(held)
        return longest

    def _patience_with_queued(self, held: Held) -> float:
        twin = self._it.twin(held)
        if twin.is_gone:
            return self._it.waited + BEHIND  # to find that out took a while, and its place is free now
        if twin.is_put_off:
            return -1.0  # its time has not come, and it claims anew when it has
        if self._it.is_sync:
            raise DuplicateTaskError(*facts_of(held))  # it cannot be waited for
        self._wait_no_longer_than_told(held)
        return BEHIND

    def _conflict(self) -> str:
        """What becomes of it if another job is running."""
        it = self._it
        if it.scheduled is not None:  # of a scheduled job that is the schedule's to say
            return "skip" if it.scheduled.overlap == "skip" else "wait"
        conflict = it.policy.on_conflict.run
        if conflict == "skip" and (it.policy.hold == "one_queued_one_running" or it.is_the_next):
            return "wait"  # it has a place in the queue for the very purpose of running after the other one
        return conflict

    def _wait_no_longer_than_told(self, held: Held) -> None:
        """Counted from when it first met another job: neither an outage nor its own other run is one."""
        it, now = self._it, time.time()
        if not it.note.since:
            it.change(since=now)
        waited = now - it.note.since
        if it.policy.on_conflict.run == "wait" and waited > it.policy.wait_up_to:
            it.forget_waiting()
            raise WaitTimeoutError(*facts_of(held), round(waited, 1))

    def _gives_way_to_the_one_it_joins(self) -> bool:
        """Its twin has a place in the queue apart from its run: that one runs, this one waits."""
        it = self._it
        if not it.note.join or not it.place or it.place == it.name:
            return False
        entry = it.guard.store.get(it.place)
        if entry is None or not is_queued(entry) or entry.owner != it.note.join:
            return False
        return not it.twin(entry).is_gone
