"""How a body ended, and what becomes of its claims, its message and its job."""

from __future__ import annotations

from taskguard.engine.effects import Drop, Effect, Ended, GoOn, Raise, RaiseTokens, Return
from taskguard.engine.leaving import End, Leaving
from taskguard.store import How


class Ending(Leaving):
    def body_ended(self, ended: Ended) -> Effect:
        self.ended = ended
        if ended.floor > self.envelope.floor:
            self.envelope = self.envelope._replace(floor=ended.floor)
        return _ENDS[ended.kind](self, ended)

    def _returned(self, ended: Ended) -> Effect:
        return self.leave(
            Return(ended.value, "succeeded"), own="complete", how="succeeded", outer="complete", matters=True
        )

    def _failed(self, ended: Ended) -> Effect:
        assert ended.error is not None
        return self.leave(
            Raise(ended.error, "failed"), own="fail", how="failed", outer="release", error=ended.error, matters=True
        )

    def _goes_on(self, ended: Ended) -> Effect:
        copy = self.facts.attempt if self.terms.names_copies else ""
        # With hold="queued" a job that joined another has the entry of that one, and keeps it.
        join = self.envelope.join if self.layers[-1].policy.hold == "queued" else ""
        envelope = self.envelope.as_new()._replace(copy=copy, join=join)
        return self.leave(GoOn(envelope, ended), own="requeue", copy=copy, matters=True)

    def _goes_back(self, ended: Ended) -> Effect:
        assert ended.error is not None
        # Of a plain task that a schedule made, the message of a retry has left already.
        return self.leave(Raise(ended.error), own="requeue", matters=self.layers[-1].slot is None)

    def _passes(self, ended: Ended) -> Effect:
        """The body's own word to its queue: the work is neither done nor failed."""
        then = Return(ended.value) if ended.error is None else Raise(ended.error)
        return self.leave(then, own="release", how=_WORDS[ended.kind], outer="release", matters=True)

    def _cancelled(self, ended: Ended) -> Effect:
        assert ended.error is not None
        return self.leave(Drop("its slot was cancelled"), own="release", how="revoked", outer="nothing")

    def _lost(self, ended: Ended) -> Effect:
        assert ended.error is not None
        if not self.facts.can_wait:
            tokens = (RaiseTokens(self.entry(-1), ended.floor),) if ended.floor else ()
            return self.leave(Raise(ended.error), own="release", outer="release", last=tokens)
        # If nobody has the key by now, that was one of its starts; or its token was too low.
        end: End = "requeue" if ended.comes_again else "release"
        return self.leave(self.deferral("lost"), own=end, outer=end, keep_starts=not ended.floor)

    def _not_begun(self, ended: Ended) -> Effect:
        return self.leave(self.deferral("whole_time"), own="requeue")


_ENDS = {
    "returned": Ending._returned,
    "failed": Ending._failed,
    "retry": Ending._goes_on,
    "goes_back": Ending._goes_back,
    "ignored": Ending._passes,
    "rejected": Ending._passes,
    "released": Ending._passes,
    "lost": Ending._lost,
    "cancelled": Ending._cancelled,
    "not_begun": Ending._not_begun,
}
_WORDS: dict[str, How] = {"ignored": "ignored", "rejected": "rejected", "released": "released"}
