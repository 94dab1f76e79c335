"""What is settled for a process that is gone: by the attempt that died, as the same job may run elsewhere already."""

from __future__ import annotations

from taskguard.engine.drive import carry_out
from taskguard.engine.effects import Settle
from taskguard.engine.layers import Layer, Terms
from taskguard.engine.value import Value
from taskguard.guard import Guard
from taskguard.store import Claimant, How


class Gone(Value):
    """A delivery whose process is gone."""

    layers: tuple[Layer, ...]
    queue_entry: str
    """The entry that holds the job's place in the queue, where that is one of its own; else empty."""
    owner: str
    attempt: str

    def end(
        self,
        guard: Guard,
        how: How,
        error: BaseException | None = None,
        *,
        answered: bool = False,
        anyway: bool = False,
        detail: str = "",
    ) -> bool:
        """The job has ended. *anyway*: it never began, so whoever holds its entries is none of its attempts."""
        done = False
        for layer in reversed(self.layers):
            step = Settle("release", layer.entry, self.owner, self.attempt, how=how, keep_for=layer.policy.keep)
            # Once its key is settled the job has ended, and so has its slot, whoever has that by now.
            step.anyway = anyway or done
            if layer.slot is None:
                step.error, step.answered = error, answered
                if how == "failed" and layer.policy.on_done == "reuse":
                    step.verb = "complete"
            done = carry_out(guard, step) or done
        if self.queue_entry and (done or anyway):
            keep = self.layers[-1].policy.keep
            carry_out(guard, Settle("release", self.queue_entry, self.owner, self.attempt, keep_for=keep, anyway=True))
        if done:
            guard.tell("failed" if how == "failed" else "released", self._claimant, detail=detail)
        return done

    def requeue(self, guard: Guard, terms: Terms, *, keep_starts: bool, delay: float = 0.0, detail: str = "") -> bool:
        """The job comes again."""
        done = False
        for layer in reversed(self.layers):
            step = Settle("requeue", layer.entry, self.owner, self.attempt)
            step.seconds, step.copy_for = terms.queued_for + delay, terms.republish_after + delay
            step.keep_starts = keep_starts
            done = carry_out(guard, step) or done
        if done:
            guard.tell("requeued", self._claimant, detail=detail)
        return done

    @property
    def _claimant(self) -> Claimant:
        return Claimant(self.layers[-1].entry, self.owner, self.attempt)
