"""Claim a key until the store grants it, or until its work has ended: for callers that wait in place."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from taskguard.engine.work import Work
from taskguard.errors import DuplicateTaskError, StoreError, StoreUnavailableError, WaitTimeoutError
from taskguard.protocol.policy import Policy
from taskguard.protocol.store import Claim, Claimant, Completed, Ending, Held
from taskguard.runtime.backoff import pauses
from taskguard.runtime.clocks import since_boot
from taskguard.runtime.interrupt import came_by_signal

if TYPE_CHECKING:
    from taskguard.guard import Guard

Outlasts = Literal["never", "once_held", "always"]
"""Whether to retry an unavailable store for as long as the policy waits: never, always, or only once the store has
answered that another owner holds the key."""


class Claiming:
    """One claim of a key, and how long the caller waits for it."""

    def __init__(
        self,
        guard: Guard,
        policy: Policy,
        claim: Claim,
        *,
        idempotency_key: str | None = None,
        outlasts: Outlasts = "never",
    ) -> None:
        self._guard = guard
        self._policy = policy
        self._claim = claim
        self._idempotency_key = idempotency_key
        self._outlasts = outlasts
        self.was_held = False
        """The store has answered at least once that another owner holds the key."""

    def obtain(self) -> Work | Completed:
        """Raises `DuplicateTaskError` or `WaitTimeoutError` if others hold the key for longer than the policy waits."""
        policy, started, waits = self._policy, since_boot(), None
        while True:
            try:
                answer = self._begin(self._claim)
                if not policy.enforce and not isinstance(answer, Work):
                    answer = self._begin(replace(self._claim, key=f"{self._claim.key}:beside:{self._claim.attempt}"))
            except StoreUnavailableError:
                left = policy.wait_up_to - (since_boot() - started)
                is_patient = self._outlasts == "always" or (self._outlasts == "once_held" and self.was_held)
                if left < 0 or not is_patient:
                    raise
            else:
                if not isinstance(answer, Held):
                    return answer
                left = self._time_left(answer, since_boot() - started)
            waits = waits or pauses()
            time.sleep(min(next(waits), left))

    def _begin(self, claim: Claim) -> Work | Held | Completed:
        try:
            return self._guard.begin(claim, self._policy, idempotency_key=self._idempotency_key, again=self.was_held)
        except BaseException as error:
            if came_by_signal(error):
                # For example a timeout. The key may have been granted: release it, so that nobody waits for its lease.
                with suppress(StoreError):
                    names = Claimant(claim.key, claim.owner, claim.attempt)
                    self._guard.store.release(names, Ending(keep_for=self._policy.keep))
            raise

    def _time_left(self, held: Held, waited: float) -> float:
        """The seconds left to wait for the holder."""
        self.was_held = True
        policy, claim, is_other = self._policy, self._claim, held.owner != self._claim.owner
        facts = (held.key, held.owner, held.state, held.since, held.token)
        if not policy.wait_up_to or (policy.on_conflict.run == "raise" and is_other):
            raise DuplicateTaskError(*facts)
        if waited >= policy.wait_up_to:
            about = {"holder": held.owner, "state": held.state, "since": held.since, "token": held.token}
            self._guard.report("wait_timeout", claim, **about)
            raise WaitTimeoutError(*facts, round(waited, 3))
        if policy.on_conflict.run == "skip" and is_other:
            self._claim = replace(claim, join=held.owner)  # it ends with the holder's outcome
        return policy.wait_up_to - waited
