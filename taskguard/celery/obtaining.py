"""How a delivery gets its key: it asks, and if it may not run now it joins, waits or gives way.

Nothing is dropped that somebody may wait for. What cannot run now is **put back**: published again under the same id,
with a delay, and then acknowledged.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

from celery.exceptions import Ignore

from taskguard.celery.delivery import Delivery
from taskguard.celery.message import PutBack, Skipped
from taskguard.errors import (
    ConfigurationError,
    DuplicateTaskError,
    PayloadMismatchError,
    StoreUnavailableError,
    WaitTimeoutError,
)
from taskguard.guard import new_attempt
from taskguard.places import is_queued
from taskguard.schedule.entry import may_be_of_a_slot
from taskguard.store import Claim, Claimant, Completed, Held
from taskguard.work import Work

HEIR_WAITS = 5
"""Rounds, some eight seconds in all, that a job waits for a queued twin whose message seems to be lost."""

_logger = logging.getLogger("taskguard")


class Obtaining:
    _asked: Claim
    """The last question."""

    def __init__(self, delivery: Delivery) -> None:
        self._it = delivery

    def __call__(self) -> Work | Completed:
        """The claim, or the end that answers it; whoever has to wait is put back."""
        it = self._it
        if self._is_for_another_store():
            it.put_back("its publisher looks at another store")
        if self._gives_way_to_the_one_it_joins():
            it.put_back(f"{it.message.headers.join} is queued")
        answer = self._begin(self._claim())
        if not it.policy.enforce and not isinstance(answer, Work):
            answer = self._beside()
        while isinstance(answer, Held):
            it.was_held = True
            answer = self._held(answer)
        return answer

    # -- asking ----------------------------------------------------------------------------------------------------

    def _claim(self) -> Claim:
        it = self._it
        headers = it.message.headers
        return it.guard.new_claim(
            it.name,
            it.id,
            it.policy,
            attempt=it.attempt,
            join=headers.join,
            skip=self._ends_at_once(),
            payload=headers.payload,
            copy=headers.copy,
            copy_for=it.guarding.settings.republish_after,
            floor=headers.floor,
        )

    def _begin(self, claim: Claim) -> Work | Held | Completed:
        it = self._it
        self._asked = it.claim = claim
        idempotency_key, effect = it.known_by()
        answer = it.guard.begin(
            claim,
            it.policy,
            idempotency_key=idempotency_key,
            effect_key=effect,
            scheduled_for=it.scheduled.scheduled_for if it.scheduled else None,
            schedule=it.scheduled.schedule if it.scheduled else "",
            arguments=it.arguments,
            after_outage=it.message.headers.after_outage,
        )
        it.change(after_outage=False)
        if isinstance(answer, Work) or not it.policy.enforce:
            return answer
        headers = it.message.headers
        if headers.idempotency_key and answer.payload and headers.payload != answer.payload:
            self._refuse(PayloadMismatchError(answer.key, answer.owner))
        return answer

    def _beside(self) -> Work | Held | Completed:
        """For a body that runs whoever holds the key (`enforce=False`): it has a fence of its own."""
        it = self._it
        name, floor = f"{it.key}:beside:{it.attempt}", it.message.headers.floor
        return self._begin(it.guard.new_claim(name, it.id, it.policy, attempt=it.attempt, floor=floor))

    def _ends_at_once(self) -> bool:
        """Whether this job is over if another one is running: it is told in the same step that finds it out."""
        it = self._it
        conflict = it.conflict
        return conflict == "raise" or (conflict == "skip" and not it.is_awaited and it.policy.enforce)

    def _is_for_another_store(self) -> bool:
        it = self._it
        headers = it.message.headers
        if not it.guarding.identity.is_other(it.guard, headers.store, headers.at):
            return False
        problem = (
            f"{it.task.name}[{it.id}] was published by a process that looks at another store than "
            f"{it.guard.store!r}; give both the same taskguard_store. The job waits"
        )
        _logger.error("%s", problem)
        if it.request.is_eager:
            raise ConfigurationError(problem)
        return True

    def _gives_way_to_the_one_it_joins(self) -> bool:
        """Its twin has a place in the queue apart from its run: that one runs, this one waits."""
        it = self._it
        join = it.message.headers.join
        if not join or not it.place or it.place == it.name:
            return False
        entry = it.guard.store.get(it.place)
        return entry is not None and is_queued(entry) and entry.owner == join

    # -- waiting ---------------------------------------------------------------------------------------------------

    def _held(self, held: Held) -> Work | Held | Completed:
        it = self._it
        if it.request.is_eager:
            raise DuplicateTaskError(*self._facts_of(held))  # nothing can be put back
        if held.owner == it.id:
            return self._another_delivery(held)
        if held.state == "queued":
            headers = it.message.headers
            if headers.heir == held.owner and headers.rounds >= HEIR_WAITS:
                return self._begin(replace(self._asked, replace_queued=True))
            self._wait_no_longer_than_told(held)
            self._give_way(held)
        conflict = it.conflict
        if conflict == "raise":
            it.free_place()
            it.note_end("skipped")  # its receipt came with the answer
            raise DuplicateTaskError(*self._facts_of(held))
        return self._skip(held) if conflict == "skip" else self._wait(held)

    def _facts_of(self, held: Held) -> tuple[str, str, str, float, int]:
        return self._it.key, held.owner, held.state, held.since, held.token

    def _another_delivery(self, held: Held) -> Work | Held | Completed:
        """This very job is running elsewhere: one copy of its message waits, in case that run dies."""
        it = self._it
        if held.state == "queued":
            it.put_back("a newer message of it is on its way")
        if it.message.headers.call:  # no copy of another message: what is linked to it is linked to no other
            it.put_back("another call of its id is running", within=held.remaining)
        if not it.message.headers.copy:
            # A message is given a name when it first needs one, which is seldom.
            it.change(copy=new_attempt())
            return self._begin(replace(self._asked, copy=it.message.headers.copy))
        if not held.publish:
            raise Ignore(f"{it.key}: {it.id} is running, and another copy of it waits")
        longest = it.guarding.longest_delay
        it.message.publish_again(longest=longest, within=held.remaining)
        # Named only now: a copy that was named and never published would let all others be dropped.
        answer = self._begin(replace(self._asked, copy_for=2 * longest + 10, stamp=held.stamp))
        if isinstance(answer, Held):
            raise PutBack(f"put back: {it.id} is running elsewhere")
        return answer

    def _give_way(self, held: Held) -> NoReturn:
        """Another job is queued: that one runs, and this one ends as it does."""
        it = self._it
        headers = it.message.headers
        if held.publish and held.payload == headers.payload and not may_be_of_a_slot(held.owner):
            self._publish_for(held)
        elif held.publish and headers.heir != held.owner:
            # Its message seems to be lost, and cannot be made of this one. It may also just be on its way.
            it.change(heir=held.owner, rounds=0)
        if it.conflict == "skip":
            it.change(join=held.owner)
        it.put_back(f"it gives way to {held.owner}, which is queued")

    def _publish_for(self, held: Held) -> None:
        it = self._it
        it.message.publish_for(held.owner, it.message.headers.with_(place="", slot=None, call="").as_new())
        with suppress(StoreUnavailableError):
            it.guard.store.mark([(held, held.remaining)], copy_for=it.guarding.settings.republish_after)

    def _skip(self, held: Held) -> NoReturn:
        it = self._it
        if not it.is_awaited:  # its receipt came with the answer
            words = f"{it.key}: skipped, {held.owner} is running it"
            if it.scheduled is None:
                raise Ignore(words)
            slot = Claimant(it.scheduled.schedule, it.id, "")
            it.guard.tell("slot_skipped", slot, holder=held.owner, state=held.state, since=held.since)
            raise Skipped(words)
        it.change(join=held.owner)
        it.put_back(f"it joins {held.owner}", within=held.remaining)

    def _wait(self, held: Held) -> NoReturn:
        self._wait_no_longer_than_told(held)
        self._it.put_back(f"it waits for {held.owner}", within=held.remaining)

    def _wait_no_longer_than_told(self, held: Held) -> None:
        """Counted from when it first met another job: neither an outage nor its own other run is one."""
        it, now = self._it, time.time()
        if not it.message.headers.since:
            it.change(since=now)
        waited = now - it.message.headers.since
        if it.policy.on_conflict.run == "wait" and waited > it.policy.wait_up_to:
            self._refuse(WaitTimeoutError(*self._facts_of(held), round(waited, 1)))

    def _refuse(self, error: Exception) -> NoReturn:
        """The job fails here, and its body never began."""
        self._it.free_place()
        self._it.leave_failure(error)
        raise error
