"""Settles for a dead process, by the attempt that died: the same job may already run elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from taskguard.engine.effects import Settle
from taskguard.engine.layers import Layer, Terms
from taskguard.engine.leaving import release_queue_entry
from taskguard.engine.settle import carry_out
from taskguard.engine.value import Value
from taskguard.guard import Guard
from taskguard.protocol.store import Claimant, How


class Gone(Value):
    """A delivery whose process died."""

    layers: tuple[Layer, ...]
    queue_entry: str
    """The entry that holds the job's place in the queue, if that is a separate one; else empty."""
    attempt: str

    def end(
        self,
        guards: Sequence[Guard],
        how: How,
        error: BaseException | None = None,
        *,
        answered: bool = False,
        anyway: bool = False,
        ends_slot: bool = False,
        detail: str = "",
    ) -> bool:
        """The job has ended. Each layer has its guard.

        *anyway*: it never started, so the holder of its entries is not one of its attempts. *ends_slot*: no scheduler
        may republish it, even if its process died before it claimed anything.
        """
        done = False
        for layer, guard in zip(reversed(self.layers), reversed(guards), strict=True):
            step = Settle(
                verb="release",
                entry=layer.entry,
                owner=layer.owner,
                attempt=self.attempt,
                how=how,
                keep_for=layer.policy.keep,
            )
            # Once its key is settled the job has ended, and so has its slot, whichever attempt holds that by now.
            is_over = ends_slot and layer.slot is not None
            step.anyway = anyway or done or is_over
            if layer.slot is None:
                step.error, step.answered = error, answered
                if how == "failed" and layer.policy.on_done == "reuse":
                    step.verb = "complete"
            accepted = carry_out(guard, step)
            done = done or (accepted and not is_over)
        if self.queue_entry and (done or anyway):
            carry_out(guards[-1], release_queue_entry(self.queue_entry, self.layers[-1], self.attempt))
        if done:
            guards[-1].report("failed" if how == "failed" else "released", self._claimant, detail=detail)
        return done

    def requeue(
        self, guards: Sequence[Guard], terms: Terms, *, keep_starts: bool, delay: float = 0.0, detail: str = ""
    ) -> bool:
        """The queue will run the job again."""
        done = False
        for layer, guard in zip(reversed(self.layers), reversed(guards), strict=True):
            step = Settle(verb="requeue", entry=layer.entry, owner=layer.owner, attempt=self.attempt)
            step.seconds, step.copy_for = terms.queued_for + delay, terms.republish_after + delay
            step.keep_starts = keep_starts
            done = carry_out(guard, step) or done
        if done:
            guards[-1].report("requeued", self._claimant, detail=detail)
        return done

    @property
    def _claimant(self) -> Claimant:
        return Claimant(self.layers[-1].entry, self.layers[-1].owner, self.attempt)
