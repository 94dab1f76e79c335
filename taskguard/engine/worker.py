"""The worker's machine: one delivery of a job, from its message to its end. An event is a method; it answers with the
next effect.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from taskguard.engine.effects import (
    Ask,
    Defer,
    Drop,
    Effect,
    EndQueued,
    Known,
    Look,
    LookAfter,
    Raise,
    Reason,
    Rename,
    Replay,
    Republish,
    RunBody,
    RunUnguarded,
    StandIn,
    Wait,
)
from taskguard.engine.envelope import Envelope
from taskguard.engine.layers import Facts, Layer, Terms, is_next
from taskguard.engine.leaving import COPY_WAITS, Leaving
from taskguard.errors import (
    DuplicateTaskError,
    PayloadMismatchError,
    StoreError,
    StoreUnavailableError,
    TooManyStartsError,
    WaitTimeoutError,
)
from taskguard.keys.maker import is_of_another_call
from taskguard.protocol.entry_names import is_queued
from taskguard.protocol.policy import REUSE
from taskguard.protocol.store import Claim, Completed, Entry, Held, How, Lease
from taskguard.schedule.note import may_be_of_a_slot

HEIR_WAITS = 5
"""Rounds, some eight seconds in all, that a job waits for a queued holder whose message seems to be lost."""
ENDED_BY_THE_SCHEDULE = ("revoked", "expired", "skipped")
"""A slot that ended so does not go on, whatever the key of its function says."""


class Delivery(Leaving):
    @classmethod
    def of(
        cls, terms: Terms, facts: Facts, envelope: Envelope, layers: tuple[Layer, ...], queue_entry: str = ""
    ) -> Delivery:
        apart = queue_entry if queue_entry != layers[-1].entry else ""
        return cls(terms=terms, facts=facts, envelope=envelope, layers=layers, queue_entry=apart)

    # -- asking -------------------------------------------------------------------------------------------------------

    def begin(self, other_store: BaseException | None = None) -> Effect:
        """*other_store*: its publisher asked another store than this process does."""
        if other_store is not None:
            return self._wait("other_store") if self.facts.can_wait else Raise(error=other_store)
        return self._begin()

    def _begin(self) -> Effect:
        if self.envelope.join and self.queue_entry:
            # The one it joins may have a place in the queue apart from its run: then that one runs, and this one waits.
            self.phase = "yielding"
            return Look(entry=self.queue_entry)
        return self._ask()

    def _ask(self, **more: Any) -> Effect:
        layer, envelope = self.layers[self.at], self.envelope
        is_key = layer.slot is None
        reuse = REUSE[layer.policy.on_done]
        claim = Claim(
            layer.entry if not self.beside else self.entry(self.at),
            layer.owner,
            self.facts.attempt,
            lease=layer.policy.lease,
            keep_for=layer.policy.keep,
            floor=envelope.floor,
            reuse="success" if self.by_hand and reuse == "anything" else reuse,
            skip=self._ends_at_once(layer),
            join=envelope.join if is_key and not self.beside else "",
            payload=envelope.payload if is_key else layer.payload,
            label=envelope.label if is_key else "",
            copy=envelope.copy,
            copy_for=self.terms.republish_after if self.terms.names_copies and is_key else 0.0,
        )
        again, self.asked = self.asked, True
        self.phase = "asking"
        return Ask(layer=self.at, claim=replace(claim, **more) if more else claim, again=again)

    def _ends_at_once(self, layer: Layer) -> bool:
        """Whether this job is over if another one runs: its receipt is written in the same step that finds it out."""
        if not layer.policy.enforce or layer.conflict == "wait":
            return False
        if layer.conflict == "raise" and layer.slot is None:
            return not self.facts.retried and not self.facts.reuses_ids  # else its queue must know of the end first
        return layer.slot is not None or not self.facts.awaited

    def answered(self, answer: Lease | Held | Completed, now: float) -> Effect:
        is_named, self.stamp, self.met_itself = self.phase == "naming", "", False
        if isinstance(answer, Lease):
            return self._got(answer)
        if self.envelope.after_outage:
            self.envelope = self.envelope._replace(after_outage=False)
        layer = self.layers[self.at]
        if not layer.policy.enforce and not self.beside:
            self.at, self.beside = len(self.layers) - 1, True
            return self._ask()
        mine = self.envelope.payload if self.envelope.idempotency_key and layer.slot is None else ""
        if mine and answer.payload and is_of_another_call(mine, answer.payload):
            return self._refuse(PayloadMismatchError(answer.key, self.facts.shown(answer.owner)))
        if isinstance(answer, Completed):
            return self._found_ended(answer, layer)
        self.met_another = True
        is_itself = self.facts.is_this_job(answer.owner)
        if is_named and (is_itself or answer.state == "queued" or not self._ends_at_once(layer)):
            return self._leave_to_its_copy()
        if answer.state == "queued" and not is_itself:
            self.phase, self.holder = "holder", answer
            return LookAfter(holder=answer)
        if not self.facts.can_wait:
            return self.leave(Raise(error=self._duplicate(answer)))
        if is_itself:
            return self._found_itself(answer)
        self.holder = answer
        return self._meet(answer, layer, now)

    def _got(self, lease: Lease) -> Effect:
        layer = self.layers[self.at]
        self.granted = (*self.granted, self.at)
        is_last = self.at == len(self.layers) - 1
        if is_last and lease.starts > layer.policy.max_starts:
            error = TooManyStartsError(lease.key, self.facts.shown(layer.owner), lease.starts, layer.policy.max_starts)
            return self.leave(
                Raise(error=error, ended_as="failed"), own="fail", how="failed", outer="release", error=error
            )
        if not is_last:
            self.at += 1
            return self._ask()
        if self.envelope.after_outage:
            self.envelope = self.envelope._replace(after_outage=False)
        if self.queue_entry and is_next(self.envelope):
            self.phase = "checking_queue_entry"
            return Look(entry=self.queue_entry)
        return self._run()

    def _found_ended(self, done: Completed, layer: Layer) -> Effect:
        if done.owner == layer.owner and self.facts.reuses_ids:
            self.phase, self.done = "renaming", done
            return Rename(done=done)
        return self._answer_with(done, layer)

    def renamed(self, layers: tuple[Layer, ...] | None, by_hand: bool) -> Effect:
        """*layers*: those of the occurrence that this delivery is; None if the end that was found is its own."""
        done, self.done = self.done, None
        if layers is not None:
            self.layers, self.by_hand = layers, by_hand
            return self._ask()
        assert done is not None
        return self._answer_with(done, self.layers[self.at])

    def _answer_with(self, done: Completed, layer: Layer) -> Effect:
        is_own = done.owner == layer.owner
        if layer.slot is not None:
            if self.at < len(self.layers) - 1 and done.how not in ENDED_BY_THE_SCHEDULE:
                self.at += 1
                return self._ask()  # the function's own key has the outcome to answer with
            return self.leave(
                Drop(why=f"its slot {done.how} before", done=done), outer="release", how=done.how, receipt=True
            )
        is_refusal = is_own and done.how == "skipped" and layer.conflict == "raise"
        if is_refusal or done.how in ("succeeded", "failed"):
            return self.leave(
                Replay(done=done), how=done.how, outer="complete" if done.how == "succeeded" else "release"
            )
        return self.leave(Drop(why=f"{done.how} before", done=done), how=done.how, outer="release")

    # -- meeting others -----------------------------------------------------------------------------------------------

    def _found_itself(self, held: Held) -> Effect:
        """This very job runs elsewhere: never beside that, and one copy of its message waits in case it dies."""
        self.met_itself = True
        # A further call of its id is not a copy of another message: nothing else has the same callbacks. Nor may a
        # message of a plain scheduled job be one: the body sends that of its retry while it runs.
        is_unlike = bool(self.envelope.call) or self.layers[-1].slot is not None
        if not self.terms.names_copies or held.state == "queued" or is_unlike:
            return self._wait("itself", held, held.remaining if held.state == "running" else float("inf"))
        if not self.envelope.copy:
            # A message is given a name when it first needs one, which is seldom.
            self.envelope = self.envelope._replace(copy=self.facts.attempt)
            return self._ask()
        if not held.publish:
            return self._leave_to_its_copy()
        self.stamp = held.stamp
        self.phase = "republishing"
        self.envelope = self.envelope._replace(rounds=self.envelope.rounds + 1)
        return Republish(envelope=self.envelope, within=held.remaining)

    def _leave_to_its_copy(self) -> Effect:
        """That one is with the broker, whoever has the key by now: published once more it would be two."""
        self.met_itself = True
        return self.leave(Drop(why=COPY_WAITS))

    def republished(self) -> Effect:
        """With the broker again, and named only now: named and never published, it would let all others be dropped."""
        effect = self._ask(copy_for=self.terms.trust_copy_for, stamp=self.stamp)
        self.phase = "naming"
        return effect

    def holder_is(self, known: Known, now: float) -> Effect:
        """What the queue knows of the holder, which is queued."""
        held = self.holder
        if self.phase == "yielding":
            assert isinstance(held, Entry)
            return self._ask() if known == "gone" else self._yield_to(held, known, now)
        if self.phase == "checking_queue_entry":
            return self._run() if known == "gone" else self._join_newer(held.owner if held is not None else "")
        assert isinstance(held, Held)
        envelope, layer = self.envelope, self.layers[self.at]
        is_overdue = envelope.heir == held.owner and envelope.rounds >= HEIR_WAITS
        if known in ("gone", "put_off") or is_overdue:
            return self._ask(replace_queued=True)
        if not self.facts.can_wait:
            return self.leave(Raise(error=self._duplicate(held)))
        if layer.conflict == "skip" and layer.slot is not None:
            return self._skip(held, layer)
        if (over := self._over_time(held, layer, now)) is not None:
            return over
        self._join(held, layer)
        envelope = self.envelope
        if known == "unknown" and held.publish:
            if held.payload == envelope.payload and not may_be_of_a_slot(held.owner):
                self.phase = "standing_in"
                return StandIn(
                    holder=held, envelope=envelope._replace(id=held.owner, queue_entry="", slot=None, call="").as_new()
                )
            if envelope.heir != held.owner:
                # Its message seems to be lost, and cannot be made of this one. It may also just be on its way.
                self.envelope = envelope._replace(heir=held.owner, rounds=0)
        return self._wait("queued", held, now=now)

    def _yield_to(self, queued: Entry, known: Known, now: float) -> Effect:
        """The one it joins has a place in the queue: that one runs, and this one waits; unless it does not come."""
        envelope, layer = self.envelope, self.layers[-1]
        if known == "unknown" and queued.copies == 0:
            if envelope.heir == queued.owner and envelope.rounds >= HEIR_WAITS:
                self.phase = "ending_holder"
                return EndQueued(entry=self.queue_entry, owner=queued.owner, how="expired", keep_for=layer.policy.keep)
            if envelope.heir != queued.owner:
                self.envelope = envelope._replace(heir=queued.owner, rounds=0)
        waited = now - (envelope.since or now)
        if layer.conflict == "wait" and waited > layer.wait_up_to:
            return self._refuse(WaitTimeoutError(*self._facts_of(queued), round(waited, 1)))
        return self._wait("queued", queued, now=now)

    def went_on(self, error: StoreError | None = None) -> Effect:
        if self.phase == "ending_holder":
            return self._ask() if error is None else self.store_away(error)
        self.phase = "body"
        return RunBody()

    def stood_in(self, now: float) -> Effect:
        return self._wait("queued", self.holder, now=now)

    def _meet(self, held: Held, layer: Layer, now: float) -> Effect:
        """Another job runs."""
        if layer.conflict == "raise":
            receipt = self.facts.reuses_ids and not self.facts.retried  # else it came with the answer
            return self.leave(
                Raise(error=self._duplicate(held), ended_as="skipped"), how="skipped", outer="release", receipt=receipt
            )
        if layer.conflict == "skip" and (layer.slot is not None or not self.facts.awaited):
            return self._skip(held, layer)
        if (over := self._over_time(held, layer, now)) is not None:
            return over
        self._join(held, layer)
        return self._wait("running", held, held.remaining, now=now)

    def _join(self, held: Held, layer: Layer) -> None:
        # With hold="queued" the entry is the job's own: whoever has it joined this job, and is not joined by it.
        if layer.conflict == "skip" and layer.policy.hold != "queued":
            self.envelope = self.envelope._replace(join=held.owner)

    def _skip(self, held: Held, layer: Layer) -> Effect:
        """Nobody waits for it, and the holder does the work."""
        holder = held if self.layers[0].slot is not None else None
        # Of a holder that runs, the answer came with a receipt in the entry that was asked for.
        asked = self.at if held.state != "queued" else -1
        return self.leave(
            Drop(why="skipped", holder=holder), how="skipped", outer="release", receipt=True, has_receipt=asked
        )

    def _over_time(self, held: Held, layer: Layer, now: float) -> Effect | None:
        waited = now - (self.envelope.since or now)
        if layer.conflict != "wait" or waited <= layer.wait_up_to:
            return None
        return self._refuse(WaitTimeoutError(*self._facts_of(held), round(waited, 1)))

    def _duplicate(self, held: Held) -> DuplicateTaskError:
        return DuplicateTaskError(*self._facts_of(held))

    def _facts_of(self, held: Held | Entry) -> tuple[str, str, str, float, int]:
        return held.key, self.facts.shown(held.owner), held.state, held.since, held.token

    # -- waiting ------------------------------------------------------------------------------------------------------

    def _wait(
        self, reason: Reason, holder: Held | Entry | None = None, within: float = float("inf"), now: float = 0.0
    ) -> Effect:
        if reason in ("queued", "running") and now and not self.envelope.since:
            self.envelope = self.envelope._replace(since=now)  # neither an outage nor its own run counts
        self.phase, self.holder = "waiting", holder
        self.then = self.deferral(reason, holder, within)
        return Wait(reason=reason, holder=holder, within=within)

    def waited(self, here: bool, given_up: How | None = None) -> Effect:
        """*here*: a moment has passed, and it can ask again; else the message is deferred.

        *given_up*: the queue has ended the job meanwhile.
        """
        assert isinstance(self.then, Defer)
        deferral, self.then = self.then, None
        if given_up is not None:
            keep, names = self.layers[-1].policy.keep, {self.queue_entry, self.entry(-1)} - {""}
            steps = [EndQueued(entry=name, owner=self.layers[-1].owner, how=given_up, keep_for=keep) for name in names]
            drop = Drop(why=f"{given_up} while it waited")
            return self.leave(drop, how=given_up, outer="release", first=tuple(steps))
        if not here:
            return self.leave(deferral)
        return self._begin() if not self.granted else self._ask()  # it may join somebody now

    # -- the place in the queue ---------------------------------------------------------------------------------------

    def looked(self, entry: Entry | None) -> Effect:
        self.holder = entry
        if self.phase == "yielding":
            if entry is not None and is_queued(entry) and entry.owner == self.envelope.join:
                return LookAfter(holder=entry)
            return self._ask()
        if entry is None or entry.owner in ("", self.layers[-1].owner):
            return self._run()
        if is_queued(entry):
            return LookAfter(holder=entry)
        if entry.owner == self.envelope.join:
            return self._run()  # the one that it joined has ended with nothing
        return self._join_newer(entry.owner)

    def _join_newer(self, owner: str) -> Effect:
        """A call with newer arguments has its place, and may have run since: this job ends as that one does."""
        self.envelope = self.envelope._replace(join=owner)
        return self.leave(self.deferral("newer", self.holder), own="release")

    def _run(self) -> Effect:
        self.phase = "starting"
        return self.free_queue_entry() if self.queue_entry else self.went_on()

    def _refuse(self, error: Exception) -> Effect:
        """The job fails here, without a lease."""
        if self.facts.retried:
            return self.leave(Raise(error=error))
        return self.leave(
            Raise(error=error, ended_as="failed"), how="failed", outer="release", receipt=True, error=error
        )

    def store_away(self, error: StoreError) -> Effect:
        """The store could not be asked, or refused the question, before the body.

        A refusal is never hidden by "run_unguarded": the job waits until somebody has put it right.
        """
        passing = isinstance(error, StoreUnavailableError)
        reason: Reason = "store_away" if passing else "store_refuses"
        what = self.terms.on_store_error
        is_free = not self.met_another and self.phase != "checking_queue_entry"
        if what == "run_unguarded" and is_free and passing:
            return self.leave(
                RunUnguarded(error=error), outer="nothing"
            )  # a slot that it has lasts as long as the body
        if self.phase == "checking_queue_entry" and self.facts.can_wait:
            return self.leave(self.deferral(reason), own="release")  # whether it has its place is not known
        if (what == "fail" and not self.met_another) or not self.facts.can_wait:
            return self.leave(Raise(error=error), how="failed", outer="requeue" if self.facts.retried else "release")
        self.envelope = self.envelope._replace(after_outage=True)  # nor could its holder renew
        return self.leave(self.deferral(reason))
