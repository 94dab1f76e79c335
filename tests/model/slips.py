"""The machines with one rule dropped, each by overriding one small method."""

from __future__ import annotations

from typing import Any

from taskguard.engine import effects as fx
from taskguard.engine.publisher import Answer, Call
from taskguard.engine.worker import Delivery
from taskguard.protocol.store import Completed, Held, Lease


class AcksWhenRefused(Delivery):
    def _not_taken(self, step: fx.Settle) -> None:
        """Whatever the store said, the body has ended."""


class DropsItsOwnRunning(Delivery):
    def _found_itself(self, held: Held) -> fx.Effect:
        return self._leave_to_its_copy()


class EveryCopyGoesOn(Delivery):
    def _found_itself(self, held: Held) -> fx.Effect:
        held.publish = True
        return super()._found_itself(held)


class NeverNamesACopy(Delivery):
    def republished(self) -> fx.Effect:
        return self._leave_to_its_copy()


class NamesBeforeItPublishes(Delivery):
    def _found_itself(self, held: Held) -> fx.Effect:
        effect = super()._found_itself(held)
        return self.republished() if isinstance(effect, fx.Republish) else effect

    def _leave_to_its_copy(self) -> fx.Effect:
        if self.phase != "naming":
            return super()._leave_to_its_copy()
        return self.leave(self.deferral("itself"))


class TheNameStaysBehind(Delivery):
    """The copy that goes on does not carry the name that the store knows."""

    def _found_itself(self, held: Held) -> fx.Effect:
        effect = super()._found_itself(held)
        if isinstance(effect, fx.Republish):
            effect.envelope = effect.envelope._replace(copy="")
        return effect


class GivesWayByDropping(Delivery):
    def holder_is(self, known: fx.Known, now: float) -> fx.Effect:
        assert isinstance(self.holder, Held)
        return self._skip(self.holder, self.layers[self.at])


class JoinsNobody(Delivery):
    """It has been told whom it joins, and does not ask about that one."""

    def _ask(self, **more: Any) -> fx.Effect:
        return super()._ask(**more, join="")


class ForgetsTheFloor(Delivery):
    def body_ended(self, ended: fx.Ended) -> fx.Effect:
        ended.floor = 0
        return super().body_ended(ended)


class KeepsNothing(Delivery):
    """The entry is forgotten as soon as its lease has run out."""

    def _ask(self, **more: Any) -> fx.Effect:
        return super()._ask(**more, keep_for=0.0)


class CountsNoStarts(Delivery):
    def _got(self, lease: Lease) -> fx.Effect:
        lease.starts = 0
        return super()._got(lease)


class IgnoresItsOwnQueued(Call):
    def _met_itself(self, found: Held | Completed) -> fx.Effect:
        return Answer(found=found)


class NeverStandsIn(Call):
    """A handle is given out for a job that nobody is known to have published."""

    def holder_is(self, known: fx.Known, has_handle: bool) -> fx.Effect:
        return super().holder_is("coming", has_handle)
