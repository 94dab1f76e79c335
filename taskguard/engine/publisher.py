"""The publisher's machine: one call of a guarded function, before its queue has it.

It claims a queue entry and then publishes, or returns the holder's handle. A caller gets the holder's handle only after
the broker has confirmed the holder's message.
"""

from __future__ import annotations

from collections.abc import Callable

from taskguard.engine.effects import Ask, Effect, EndQueued, Known, Last, Look, LookAfter, Raise, StandIn
from taskguard.engine.envelope import Envelope
from taskguard.engine.layers import job_queue_entry
from taskguard.engine.value import Value
from taskguard.errors import DuplicateTaskError, PayloadMismatchError
from taskguard.keys.maker import is_of_another_call
from taskguard.protocol.entry_names import is_queued, next_of, run_of
from taskguard.protocol.policy import REUSE, Policy
from taskguard.protocol.store import Claim, Completed, Entry, Held, How, Lease
from taskguard.schedule.note import may_be_of_a_slot

TRIES = 5
"""How often to end a holder that its queue will not run, and claim again."""


class Publish(Last):
    """Publish the call with this envelope."""

    envelope: Envelope
    claimed: Lease | Held | None = None
    """The queued entry of the message, to confirm once the broker has it."""
    about: Held | Completed | None = None
    """The holder or the earlier end that the call found, for its `CallInfo`."""
    raises: BaseException | None = None
    """What to raise to the caller once the message is sent."""


class Answer(Last):
    """The call is a duplicate: its caller gets this job's handle."""

    found: Held | Completed


class Call(Value):
    """One call: events in, effects out."""

    policy: Policy
    envelope: Envelope
    owner: str
    new_attempt: Callable[[], str]
    waits_for: float
    """How long its queued entry waits for a worker."""
    copy_for: float = 0.0
    """Seconds for which a published message does not count as lost; 0 if the queue itself knows."""
    needs_own_handle: bool = False
    """Only a result under the call's own id will do: for a canvas, or for callbacks."""
    may_raise: bool = True
    nobody_listens: bool = False
    """The queue itself makes the call, and an error would fail the job before it: the worker refuses it instead."""
    may_be_further: bool = False
    """The call has callbacks, and its id, which its caller chose, may have been called before."""
    hears_by_message: bool = False
    """A handle is not enough: the call has callbacks, or a result that only its own message delivers."""
    meanwhile: Callable[[], None] | None = None
    shown: Callable[[str], str] = str
    """An owner as people know it."""
    entry: str = ""
    held: Held | None = None
    tries: int = TRIES

    def begin(self) -> Effect:
        envelope = self.envelope
        self.entry = job_queue_entry(self.policy, envelope)
        if not self.entry or envelope.slot:
            return self.unclaimed()  # the worker claims, or the run of its slot
        if self.policy.on_conflict.enqueue == "run_once_more" and not envelope.queue_entry:
            return Look(entry=next_of(envelope.key))
        return self._ask()

    def unclaimed(self) -> Publish:
        """Publish without a claim. The store was not asked about this id, so this may not be its first call."""
        if self.may_be_further and not self.envelope.slot:
            self._name_call()
        return Publish(envelope=self.envelope)

    def _name_call(self, *, has_ended: bool = False) -> None:
        self.envelope = self.envelope._replace(call=self.new_attempt(), unanswered=has_ended)

    def looked(self, entry: Entry | None) -> Effect:
        """The entry of the one more run: a job queued there has not started, though the key may be free.

        Published beside it, these arguments might run first, and the older ones after them.
        """
        if is_queued(entry):
            self._take_next()
        return self._ask()

    def _take_next(self) -> None:
        self.entry = next_of(self.envelope.key)
        self.envelope = self.envelope._replace(queue_entry=self.entry)

    def _ask(self, *, replace: bool = False) -> Effect:
        claim = Claim(
            self.entry,
            self.owner,
            self.new_attempt(),
            state="queued",
            lease=self.waits_for,
            keep_for=self.policy.keep,
            reuse=REUSE[self.policy.on_done],
            payload=self.envelope.payload,
            label=self.envelope.label,
            copy_for=self.copy_for,
            replace_queued=replace,
            meanwhile=self.meanwhile,
        )
        return Ask(layer=0, claim=claim)

    def answered(self, answer: Lease | Held | Completed) -> Effect:
        if isinstance(answer, Lease):
            if self.may_be_further and answer.key != run_of(self.policy, self.envelope.key, self.owner):
                self._name_call()
            return Publish(envelope=self.envelope, claimed=answer)
        if not self.policy.enforce:
            return self.unclaimed()
        mine = self.envelope.payload if self.envelope.idempotency_key else ""
        if mine and answer.payload and is_of_another_call(mine, answer.payload):
            return self._refuse(PayloadMismatchError(answer.key, self.shown(answer.owner)), answer)
        if answer.owner == self.owner:
            return self._met_itself(answer)
        if isinstance(answer, Completed):
            # A worker answers under this id.
            return Publish(envelope=self.envelope, about=answer) if self.needs_own_handle else Answer(found=answer)
        self.held = answer
        return LookAfter(holder=answer)

    def _met_itself(self, found: Held | Completed) -> Effect:
        """This id was called before. Its message goes out once more if it is queued, or if only that will do."""
        if self.hears_by_message:
            self._name_call(has_ended=isinstance(found, Completed))
        if isinstance(found, Held) and found.state == "queued":
            return Publish(envelope=self.envelope, claimed=found, about=found)
        return Publish(envelope=self.envelope, about=found) if self.hears_by_message else Answer(found=found)

    def _refuse(self, error: Exception, found: Held | Completed) -> Effect:
        return Publish(envelope=self.envelope, about=found) if self.nobody_listens else Raise(error=error)

    def holder_is(self, known: Known, has_handle: bool) -> Effect:
        """What the queue knows of the holder; *has_handle*: whether the caller can get its handle."""
        held = self.held
        assert held is not None
        if known == "gone" and held.state == "queued" and self.tries > 0:
            self.tries -= 1
            how: How = "revoked" if has_handle else "expired"
            return EndQueued(entry=held.key, owner=held.owner, how=how, keep_for=self.policy.keep)
        is_unbacked = held.publish and known == "unknown"
        if is_unbacked and held.payload == self.envelope.payload and not may_be_of_a_slot(held.owner):
            return StandIn(
                holder=held, envelope=self.envelope._replace(id=held.owner, queue_entry="", slot=None, call="").as_new()
            )
        # Otherwise this call cannot stand in for the holder: publish it, and it takes the holder's place if needed.
        return self._meet(held, is_unbacked or known == "gone" or not has_handle)

    def settled(self, accepted: bool) -> Effect:
        """The holder that its queue will not run is ended, or was started after all."""
        return self._ask()

    def stood_in(self, has_handle: bool) -> Effect:
        assert self.held is not None
        return self._meet(self.held, not has_handle)

    def _meet(self, held: Held, has_no_handle: bool) -> Effect:
        """Another job holds the queue entry: apply `on_conflict`."""
        conflict = self.policy.on_conflict.enqueue
        if conflict == "raise" and self.may_raise:
            error = DuplicateTaskError(held.key, self.shown(held.owner), held.state, held.since, held.token)
            if held.publish and has_no_handle and not self.nobody_listens:
                return Publish(envelope=self.envelope._replace(join=held.owner), about=held, raises=error)
            return self._refuse(error, held)
        is_news = held.state == "running" or held.payload != self.envelope.payload
        if conflict == "run_once_more" and is_news:
            replace = held.key == next_of(self.envelope.key)
            self._take_next()
            return self._ask(replace=replace)  # the newest arguments run
        if self.needs_own_handle or has_no_handle:
            joins = self.envelope if conflict == "raise" else self.envelope._replace(join=held.owner)
            return Publish(envelope=joins, about=held)
        return Answer(found=held)
