"""The protocol with one rule less, or one fault that it once had: each is found by some history."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from taskguard.engine import effects as fx
from taskguard.engine.layers import Layer, key_layer
from taskguard.engine.publisher import Call
from taskguard.engine.worker import Delivery
from taskguard.protocol.rules import Kept, Receipt, Rules, Step
from taskguard.protocol.store import Claim, Completed, Held, Lease
from tests.model.dropped import JoinedWhileItRuns, JoinedWithoutAReceipt, NeverLingers
from tests.simulation.world import START, Code


class KeepsItsPlace(Delivery):
    """A job that is refused, or skipped, keeps its place in the queue."""

    def leave(self, then: fx.Last, **how: Any) -> fx.Effect:
        kept, self.queue_entry = self.queue_entry, ""
        try:
            return super().leave(then, **how)
        finally:
            self.queue_entry = kept


class CountsAnyWait(Delivery):
    """`wait_up_to` runs from an outage, or from another delivery of the job itself."""

    def answered(self, answer: Lease | Held | Completed, now: float) -> fx.Effect:
        if not self.envelope.since and not isinstance(answer, Lease):
            self.envelope = self.envelope._replace(since=now)
        return super().answered(answer, now)

    def store_away(self, error: Any) -> fx.Effect:
        effect = super().store_away(error)
        if isinstance(self.then, fx.Defer) and not self.then.envelope.since:
            self.then.envelope = self.then.envelope._replace(since=START)  # an outage that began with the history
        return effect


class NeverGivesUp(Delivery):
    """`wait_up_to` is not looked at behind a queued holder."""

    def holder_is(self, known: fx.Known, now: float) -> fx.Effect:
        return super().holder_is(known, self.envelope.since or now)


class EnforcesDone(Delivery):
    """With `enforce=False` finished work still answers."""

    def answered(self, answer: Lease | Held | Completed, now: float) -> fx.Effect:
        if isinstance(answer, Completed) and not self.layers[self.at].policy.enforce:
            return self._found_ended(answer, self.layers[self.at])
        return super().answered(answer, now)


class SharesTheKey(Delivery):
    """The runs of a schedule with `allow_all` meet at the key of their function."""

    @classmethod
    def of(cls, terms: Any, facts: Any, envelope: Any, layers: tuple[Layer, ...], queue_entry: str = "") -> Delivery:
        if len(layers) == 2 and ":job:" in layers[1].entry:
            inner = layers[1]
            layers = (layers[0], Layer(owner=inner.owner, entry=envelope.key, policy=inner.policy, conflict="skip"))
        return super().of(terms, facts, envelope, layers, queue_entry)


class DecidesByOnConflict(Delivery):
    """What happens to a scheduled job of a guarded function is said by that function, and not by `overlap`."""

    @classmethod
    def of(cls, terms: Any, facts: Any, envelope: Any, layers: tuple[Layer, ...], queue_entry: str = "") -> Delivery:
        if len(layers) == 2:
            layers = (layers[0], key_layer(layers[1].policy, envelope, layers[1].owner))
        return super().of(terms, facts, envelope, layers, queue_entry)


class ForgetsTheFloor(Delivery):
    """The token that a resource has seen does not travel."""

    def body_ended(self, ended: fx.Ended) -> fx.Effect:
        ended.floor = 0
        return super().body_ended(ended)


class ForgetsTheFloorOfASlot(Delivery):
    """The token that a resource has seen does not travel with a plain scheduled job."""

    def body_ended(self, ended: fx.Ended) -> fx.Effect:
        if self.layers[-1].slot is not None:
            ended.floor = 0
        return super().body_ended(ended)


class ForgetsTheOutage(Delivery):
    """A scheduled job that was deferred by an outage does not say so to its next worker."""

    def store_away(self, error: Any) -> fx.Effect:
        effect = super().store_away(error)
        if self.layers[0].slot is not None and isinstance(self.then, fx.Defer):
            self.then.envelope = self.then.envelope._replace(after_outage=False)
        return effect


class LeavesNothingWhenCutOff(Delivery):
    """A time limit that comes while the job claims settles nothing."""

    def cut_off(self, error: BaseException, comes_again: bool, delay: float = 0.0) -> tuple[fx.Settle, ...]:
        return ()


class QueuesWhatRanBeside(Delivery):
    """A retry of a job that ran beside another one leaves its entry in the queue."""

    def _end(self, at: int, end: Any, *args: Any, **kwargs: Any) -> list[fx.Effect]:
        was, entry = self.beside, self.entry(at)
        self.beside = False
        try:
            steps = super()._end(at, end, *args, **kwargs)
        finally:
            self.beside = was
        for step in steps:
            if isinstance(step, fx.Settle):
                step.entry = entry
        return steps


class DropsItsOwnCopy(Delivery):
    """A second delivery of a running job is dropped, and nobody is left when that run dies."""

    def _found_itself(self, held: Held) -> fx.Effect:
        return self._leave_to_its_copy()


class TakesARefusalForAnEnd(Delivery):
    """The end of a body that was replaced is reported as its own."""

    def settled(self, accepted: bool) -> fx.Effect:
        return super().settled(True)


class LeavesNoReceipt(Delivery):
    """A job that is skipped, or gives up, leaves no receipt."""

    def _receipt(self, *args: Any) -> fx.Settle:
        step = super()._receipt(*args)
        step.anyway = False
        return step

    def _ends_at_once(self, layer: Layer) -> bool:
        return False


class ComparesNothing(Delivery):
    """An idempotency key that was used for other work is answered with that work."""

    def answered(self, answer: Lease | Held | Completed, now: float) -> fx.Effect:
        if not isinstance(answer, Lease):
            answer.payload = ""
        return super().answered(answer, now)


class RunsBesideItself(Delivery):
    """Another delivery of the running job is no reason to wait."""

    def answered(self, answer: Lease | Held | Completed, now: float) -> fx.Effect:
        if isinstance(answer, Held) and answer.owner == self.layers[self.at].owner and answer.state == "running":
            return self._ask(attempt="another one", owner=f"{answer.owner} again")
        return super().answered(answer, now)


class StartsByAnyMessage(Delivery):
    """The message of a retry has no name: a leftover copy of the one before starts the job before its time."""

    def leave(self, then: fx.Last, **how: Any) -> fx.Effect:
        return super().leave(then, **{**how, "copy": ""})


class LosesItsRetry(Delivery):
    """A message that finds its job running is dropped, though it may be the retry that the body has just sent."""

    def _found_itself(self, held: Held) -> fx.Effect:
        return self._leave_to_its_copy() if self.layers[self.at].slot is not None else super()._found_itself(held)


class PushesIn(Delivery):
    """A call that cannot wait takes the place of a job that is queued."""

    def holder_is(self, known: fx.Known, now: float) -> fx.Effect:
        if not self.facts.can_wait:
            return self._ask(replace_queued=True)
        return super().holder_is(known, now)


class RunsNoOneMore(Call):
    """With `run_once_more` a call is answered with the running job, which has not seen its arguments."""

    def _meet(self, held: Held, has_no_handle: bool) -> fx.Effect:
        held.state, held.payload = "queued", self.envelope.payload
        return super()._meet(held, has_no_handle)


class JoinedWithoutItsOutcome(Rules):
    """A joiner is answered with the fact that its twin has ended, and not with what that returned."""

    def joined(self, ask: Claim, entry: Kept | None, twin: Receipt, now: int) -> Step[Lease | Held | Completed]:
        return super().joined(ask, entry, replace(twin, outcome=None), now)


MACHINES: list[type[Delivery]] = [
    KeepsItsPlace,
    CountsAnyWait,
    NeverGivesUp,
    EnforcesDone,
    SharesTheKey,
    DecidesByOnConflict,
    ForgetsTheFloor,
    ForgetsTheFloorOfASlot,
    ForgetsTheOutage,
    LeavesNothingWhenCutOff,
    QueuesWhatRanBeside,
    DropsItsOwnCopy,
    TakesARefusalForAnEnd,
    LeavesNoReceipt,
    ComparesNothing,
    RunsBesideItself,
    StartsByAnyMessage,
    LosesItsRetry,
    PushesIn,
]
RULES: list[type[Rules]] = [JoinedWithoutAReceipt, JoinedWhileItRuns, JoinedWithoutItsOutcome, NeverLingers]

MUTANTS: dict[str, Code] = {
    **{machine.__name__: Code(delivery=machine) for machine in MACHINES},
    **{rules.__name__: Code(rules=rules()) for rules in RULES},
    RunsNoOneMore.__name__: Code(call=RunsNoOneMore),
}
