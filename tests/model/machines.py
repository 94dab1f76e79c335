"""The shipped machines, as states of the model.

A machine handles tokens, attempts and names of copies as values that mean nothing to it. So a state has signs in their
place, and whoever is at that state knows what they stand for: its worker or its caller. Signs make two deliveries of
one job the same state wherever they are, and there are few states: each event is handed to a machine once, and what it
answered is remembered.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from taskguard.engine import effects as fx
from taskguard.engine.envelope import Envelope
from taskguard.engine.layers import Facts, Terms, job_queue_entry, key_layer
from taskguard.engine.publisher import Answer as AnswerWith
from taskguard.engine.publisher import Call, Publish
from taskguard.engine.value import Value
from taskguard.engine.worker import HEIR_WAITS, Delivery
from taskguard.protocol.policy import Policy
from taskguard.protocol.store import Claim, Completed, Held, Lease
from tests.model.store import COPY_FOR, KEEP, KEY, LEASE, NAMES, Answer
from tests.model.world import Config, Message

ME = "me"
"""The attempt of whoever is at this state; as the name of a copy: the one that it gave."""
IN_HAND = "in hand"
"""The name of the message in hand."""
FLOOR, HIGHER = 1, 2
"""The token that its message names, and one that the resource has just refused it with."""
STAMP = "stamp"

MACHINE: TypeAlias = Delivery | Call


class Hand:
    """A machine and the effect that it wants done. Equal ones are one object, known by its number."""

    __slots__ = ("effect", "machine", "memo", "number")

    def __init__(self, number: int, machine: MACHINE, effect: fx.Effect) -> None:
        self.number = number
        self.machine = machine
        self.effect = effect
        self.memo: dict[Any, Heard] = {}


class Heard(NamedTuple):
    """What an event led to: the next state, and the holder whose message was published on the way there."""

    hand: Hand
    stands_in: bool = False


class Machines:
    def __init__(self, config: Config, delivery: type[Delivery], call: type[Call]) -> None:
        self._config = config
        self._delivery = delivery
        self._call = call
        self.hands: list[Hand] = [Hand(0, Delivery(), fx.Effect())]
        """The first is nobody's."""
        self._known: dict[Any, Hand] = {}
        self._begun: dict[Any, Hand] = {}
        waits = config.policy == "wait"
        self.policy = Policy.of(
            lease=LEASE,
            keep_for=KEEP,
            on_conflict="wait" if waits else "skip",
            on_done={"nothing": "rerun", "success": "reuse_success", "anything": "reuse"}[config.reuse],
            max_starts=config.max_starts or 1000,
            **({"wait_up_to": 1e6} if waits else {}),
        )
        self.terms = Terms(queued_for=LEASE, republish_after=COPY_FOR, names_copies=True, trust_copy_for=COPY_FOR)

    # -- beginnings ----------------------------------------------------------------------------------------------------

    def delivery(self, job: int, message: Message) -> Hand:
        """A worker has taken the message."""
        named = (job, bool(message.name), message.join, message.heir, bool(message.floor))
        if named not in self._begun:
            delivery = self._delivery.of(
                self.terms,
                Facts(attempt=ME, is_this_job=NAMES[job].__eq__, awaited=job in self._config.joiners),
                self._envelope(job, message),
                (key_layer(self.policy, Envelope(key=KEY), NAMES[job]),),
                job_queue_entry(self.policy, Envelope(key=KEY)),
            )
            self._begun[named] = self._hand(delivery, delivery.begin())
        return self._begun[named]

    def call(self, job: int) -> Hand:
        """Somebody calls the function."""
        if job not in self._begun:
            call = self._call(
                policy=self.policy,
                envelope=self._envelope(job, Message()),
                owner=NAMES[job],
                new_attempt=_me,
                waits_for=LEASE,
                copy_for=COPY_FOR,
                needs_own_handle=job in self._config.joiners,
            )
            effect = call.unclaimed() if job in self._config.bare else call.begin()
            self._begun[job] = self._hand(call, effect)
        return self._begun[job]

    def _envelope(self, job: int, message: Message) -> Envelope:
        return Envelope(
            id=NAMES[job],
            key=KEY,
            payload=NAMES[job] if self._config.payloads_differ else "",
            join=NAMES[message.join] if message.join >= 0 else "",
            copy=IN_HAND if message.name else "",
            heir=NAMES[message.heir] if message.heir >= 0 else "",
            rounds=HEIR_WAITS if message.heir >= 0 else 0,
            floor=FLOOR if message.floor else 0,
        )

    # -- events --------------------------------------------------------------------------------------------------------

    def answered(self, hand: Hand, answer: Answer) -> Heard:
        def event(machine: Any) -> fx.Effect:
            found = _in_signs(answer)
            effect: fx.Effect = machine.answered(found) if isinstance(machine, Call) else machine.answered(found, 0.0)
            return effect

        # Which token it was is not the machine's business.
        return self._told(hand, answer._replace(token=0, attempt=""), event)

    def body_ended(self, hand: Hand, kind: Any, *, floor: bool = False, comes_again: bool = True) -> Heard:
        ended = fx.Ended(kind, error=None if kind == "returned" else ValueError(), comes_again=comes_again)
        ended.floor = HIGHER if floor else 0
        return self._told(hand, ("body", kind, floor, comes_again), lambda machine: machine.body_ended(ended))

    def settled(self, hand: Hand, accepted: bool) -> Heard:
        return self._told(hand, accepted, lambda machine: machine.settled(accepted))

    def republished(self, hand: Hand) -> Heard:
        return self._told(hand, "republished", lambda machine: machine.republished())

    def stood_in(self, hand: Hand) -> Heard:
        """Of a call; a delivery hears of it in the step that found the holder."""
        return self._told(hand, "stood in", lambda machine: machine.stood_in(has_handle=True))

    def called(self, hand: Hand, copy: str) -> Hand:
        """The same state, with another sign for the name of its message."""

        def event(machine: Any) -> fx.Effect:
            machine.envelope = machine.envelope._replace(copy=copy)
            effect = hand.effect
            if isinstance(effect, fx.Ask):
                return fx.Ask(layer=effect.layer, claim=replace(effect.claim, copy=copy), again=effect.again)
            return effect

        return self._told(hand, ("called", copy), event).hand

    def _told(self, hand: Hand, name: Any, event: Callable[[Any], fx.Effect]) -> Heard:
        known = hand.memo.get(name)
        if known is None:
            machine = _copied(hand.machine)
            effect, stands_in = self._at_once(machine, event(machine))
            known = hand.memo[name] = Heard(self._hand(machine, effect), stands_in)
        return known

    def _at_once(self, machine: Any, effect: fx.Effect) -> tuple[fx.Effect, bool]:
        """What Celery answers to without asking anybody. What a worker publishes for others goes out in the same step;
        a caller does that, and marks it, in steps of their own."""
        stands_in = False
        while True:
            if isinstance(effect, fx.LookAfter):
                is_call = isinstance(machine, Call)
                effect = machine.holder_is("unknown", True) if is_call else machine.holder_is("unknown", 0.0)
            elif isinstance(effect, fx.Wait):
                effect = machine.waited(here=False)
            elif isinstance(effect, fx.StandIn) and isinstance(machine, Delivery):
                effect, stands_in = machine.stood_in(0.0), True
            else:
                return effect, stands_in

    # -- states --------------------------------------------------------------------------------------------------------

    def _hand(self, machine: MACHINE, effect: fx.Effect) -> Hand:
        if isinstance(machine, Delivery):
            _simplify(machine)
        for value in (effect, getattr(machine, "then", None)):
            if isinstance(value, (fx.Defer, fx.GoOn, fx.Republish)):
                value.envelope = _plain(value.envelope)
            if isinstance(value, fx.Defer):
                value.holder, value.within = None, 0.0
        name = _frozen((machine, effect))
        if name not in self._known:
            self._known[name] = Hand(len(self.hands), machine, effect)
            self.hands.append(self._known[name])
        return self._known[name]


def _copied(machine: Any) -> Any:
    """Every field is a value, but for the last effect, which may still be changed."""
    machine = copy(machine)
    if isinstance(machine, Delivery):
        machine.then = copy(machine.then)
    return machine


def _me() -> str:
    return ME


def _in_signs(answer: Answer) -> Lease | Held | Completed:
    owner = NAMES[answer.owner] if answer.owner >= 0 else ""
    if answer.kind == "completed":
        return Completed(key=KEY, owner=owner, how=answer.how, token=1, at=0.0)  # type: ignore[arg-type]
    if answer.kind == "lease":
        state = "queued" if answer.state == "queued" else "running"
        return Lease(KEY, owner, ME, token=1, state=state, starts=answer.starts)  # type: ignore[arg-type]
    return Held(
        KEY,
        owner,
        "",
        token=1,
        state=answer.state,  # type: ignore[arg-type]
        since=0.0,
        remaining=1.0,
        payload=answer.payload,
        publish=answer.publish,
        stamp=STAMP if answer.publish and answer.state == "running" else "",
    )


def _simplify(machine: Delivery) -> None:
    """What was only for the log, or for an outage, or for a place in the queue apart, decides nothing here."""
    machine.envelope = _plain(machine.envelope)
    machine.asked = machine.met_another = machine.met_itself = False
    machine.holder = machine.done = None


def _plain(envelope: Envelope) -> Envelope:
    """Rounds are counted only where somebody waits for a holder to come, and then all of them pass at once."""
    rounds = HEIR_WAITS if envelope.heir and envelope.rounds else 0
    return envelope._replace(rounds=rounds, floor=FLOOR if envelope.floor else 0)


def _frozen(value: Any) -> Any:
    if isinstance(value, Value):
        hidden = ("terms", "facts", "layers", "policy", "new_attempt")  # the same at all states of one job
        told = [_frozen(getattr(value, name)) for name in value._fields if name not in hidden]
        return (type(value).__name__, *told)
    if isinstance(value, BaseException):
        return type(value).__name__
    if isinstance(value, tuple):
        return tuple([_frozen(each) for each in value])
    if is_dataclass(value) and not isinstance(value, type):
        return tuple([_frozen(getattr(value, each.name)) for each in fields(value)])
    return value


__all__ = ["IN_HAND", "ME", "AnswerWith", "Claim", "Hand", "Heard", "Machines", "Publish"]
