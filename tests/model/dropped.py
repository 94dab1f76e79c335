"""The rules of the store with one of them dropped, each by overriding one small method."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from taskguard.protocol.rules import Kept, Receipt, Rules, Step, stamp_of, token_of
from taskguard.protocol.store import Claim, Claimant, Completed, Ending, Held, Lease

ClaimStep = Step[Lease | Held | Completed]


# -- claims ------------------------------------------------------------------------------------------------------------


class NeverRepeats(Rules):
    def is_repeat(self, ask: Claim, entry: Kept) -> bool:
        return False


class RepeatDoesNotRenew(Rules):
    def claim(self, ask: Claim, entry: Kept | None, own: Receipt | None, twin: Receipt | None, now: int) -> ClaimStep:
        step = super().claim(ask, entry, own, twin, now)
        return replace(step, entry=entry) if entry and self.is_repeat(ask, entry) else step


class RepeatsAfterAnEnd(Rules):
    def ended_since(self, entry: Kept, own: Receipt | None, now: int) -> bool:
        return False


class AdoptsRunning(Rules):
    def may_adopt(self, ask: Claim, entry: Kept, now: int) -> bool:
        return ask.state == "running" and entry.owner == ask.owner


class AdoptsAnybodys(Rules):
    def may_adopt(self, ask: Claim, entry: Kept, now: int) -> bool:
        return ask.state == "running" and entry.state == "queued"


class AdoptsForALatePacket(Rules):
    def may_adopt(self, ask: Claim, entry: Kept, now: int) -> bool:
        return super().may_adopt(ask, replace(entry, requeued_by=""), now)


class ReplacesRunning(Rules):
    def may_replace(self, ask: Claim, entry: Kept) -> bool:
        return ask.replace_queued and entry.owner != ask.owner


class ClaimsNeverRunOut(Rules):
    def is_live(self, entry: Kept, now: int) -> bool:
        return entry.state in ("queued", "running")


class ReusesNothing(Rules):
    def answers(self, ask: Claim, entry: Kept) -> bool:
        return False


class IgnoresTwin(Rules):
    def claim(self, ask: Claim, entry: Kept | None, own: Receipt | None, twin: Receipt | None, now: int) -> ClaimStep:
        return super().claim(ask, entry, own, None, now)


class JoinsAnyEnd(Rules):
    def claim(self, ask: Claim, entry: Kept | None, own: Receipt | None, twin: Receipt | None, now: int) -> ClaimStep:
        return super().claim(ask, entry, own, twin and replace(twin, how="failed"), now)


class JoinedWhileItRuns(Rules):
    def is_running(self, ask: Claim, entry: Kept | None, now: int) -> bool:
        return False


class JoinedWithoutAReceipt(Rules):
    def joined(self, ask: Claim, entry: Kept | None, twin: Receipt, now: int) -> ClaimStep:
        return replace(super().joined(ask, entry, twin, now), receipt=None)


class JoinedStaysQueued(Rules):
    def joined(self, ask: Claim, entry: Kept | None, twin: Receipt, now: int) -> ClaimStep:
        return replace(super().joined(ask, entry, twin, now), entry=None)


class ReleasedIsAnEnd(Rules):
    def claim(self, ask: Claim, entry: Kept | None, own: Receipt | None, twin: Receipt | None, now: int) -> ClaimStep:
        ended = own and replace(own, how="ignored") if own and own.how == "released" else own
        return super().claim(ask, entry, ended, twin, now)


class ReleasedIsForgotten(Rules):
    def claim(self, ask: Claim, entry: Kept | None, own: Receipt | None, twin: Receipt | None, now: int) -> ClaimStep:
        return super().claim(ask, entry, None if own and own.how == "released" else own, twin, now)


class SkippedIsToldAsAnEnd(Rules):
    def claim(self, ask: Claim, entry: Kept | None, own: Receipt | None, twin: Receipt | None, now: int) -> ClaimStep:
        told = replace(own, attempt="") if own and own.how == "skipped" else own
        return super().claim(ask, entry, told, twin, now)


class NeverLingers(Rules):
    def claim(self, ask: Claim, entry: Kept | None, own: Receipt | None, twin: Receipt | None, now: int) -> ClaimStep:
        return super().claim(ask, entry and replace(entry, held_until=0), own, twin, now)


# -- tokens ------------------------------------------------------------------------------------------------------------


class AdoptsUnderTheSameToken(Rules):
    def next_token(self, ask: Claim, entry: Kept | None, now: int) -> int:
        if entry and entry.state == "queued" and entry.owner == ask.owner:
            return entry.token
        return super().next_token(ask, entry, now)


class TokenWithoutClock(Rules):
    def next_token(self, ask: Claim, entry: Kept | None, now: int) -> int:
        return max(entry.token + 1 if entry else 0, ask.floor + 1)


class TokenWithoutLast(Rules):
    def next_token(self, ask: Claim, entry: Kept | None, now: int) -> int:
        return max(ask.floor + 1, now)


class TokenWithoutFloor(Rules):
    def next_token(self, ask: Claim, entry: Kept | None, now: int) -> int:
        return max(entry.token + 1 if entry else 0, now)


class FreedWithoutToken(Rules):
    def ended(self, state: Any, ending: Ending, entry: Kept, now: int) -> Kept:
        return replace(super().ended(state, ending, entry, now), token=0)


# -- what a holder may do ----------------------------------------------------------------------------------------------


class NewestByOwner(Rules):
    def is_newest(self, claimant: Claimant, entry: Kept) -> bool:
        return entry.owner == claimant.owner


class NewestByToken(Rules):
    def is_newest(self, claimant: Claimant, entry: Kept) -> bool:
        return entry.owner == claimant.owner and token_of(claimant) in (0, entry.token)


class NewestByAttempt(Rules):
    def is_newest(self, claimant: Claimant, entry: Kept) -> bool:
        return super().is_newest(Claimant(claimant.key, claimant.owner, claimant.attempt), entry)


class NoAttemptIsAnAttempt(Rules):
    def is_newest(self, claimant: Claimant, entry: Kept) -> bool:
        same = (entry.attempt, entry.owner) == (claimant.attempt, claimant.owner)
        return same and token_of(claimant) in (0, entry.token)


class RequeueKeepsTheLease(Rules):
    """The attempt stays, and a renewal is good for a queued entry too."""

    def requeue(self, claimant: Claimant, seconds: float, entry: Kept | None, now: int, **copy: Any) -> Step[bool]:
        step = super().requeue(claimant, seconds, entry, now, **copy)
        return replace(step, entry=step.entry and replace(step.entry, attempt=claimant.attempt))

    def renew(self, lease: Lease, seconds: float, entry: Kept | None, now: int) -> Step[bool]:
        return super().renew(lease, seconds, entry and replace(entry, state="running"), now)


class RequeueKeepsTheAttempt(Rules):
    def requeue(self, claimant: Claimant, seconds: float, entry: Kept | None, now: int, **copy: Any) -> Step[bool]:
        step = super().requeue(claimant, seconds, entry, now, **copy)
        return replace(step, entry=step.entry and replace(step.entry, attempt=claimant.attempt))


class EndedJobIsQueuedAgain(Rules):
    def requeue(self, claimant: Claimant, seconds: float, entry: Kept | None, now: int, **copy: Any) -> Step[bool]:
        return super().requeue(claimant, seconds, entry, now, **{**copy, "own": None})


class RequeueIsNotRemembered(Rules):
    def requeue(self, claimant: Claimant, seconds: float, entry: Kept | None, now: int, **copy: Any) -> Step[bool]:
        step = super().requeue(claimant, seconds, entry, now, **copy)
        return replace(step, entry=step.entry and replace(step.entry, requeued_by=""))


class AbsentIsAccepted(Rules):
    """What the store does not know it believes."""

    def complete(
        self, claimant: Claimant, ending: Ending, entry: Kept | None, own: Receipt | None, now: int
    ) -> Step[bool]:
        return super().complete(claimant, ending, entry or _as_told(claimant, now), own, now)


class EndsAreNotRemembered(Rules):
    def told_before(self, claimant: Claimant, ending: Ending, own: Receipt | None) -> Step[bool]:
        return Step(False)


class EndsAreAnybodys(Rules):
    def told_before(self, claimant: Claimant, ending: Ending, own: Receipt | None) -> Step[bool]:
        return super().told_before(claimant, ending, own and replace(own, attempt=claimant.attempt))


class AnyEndWillDo(Rules):
    def told_before(self, claimant: Claimant, ending: Ending, own: Receipt | None) -> Step[bool]:
        return super().told_before(claimant, ending, own and replace(own, how=ending.how))


# -- receipts ----------------------------------------------------------------------------------------------------------


class OnlySuccessLeavesAReceipt(Rules):
    def release(self, claimant: Claimant, ending: Ending, *known: Any, anyway: bool = False) -> Step[bool]:
        return replace(super().release(claimant, ending, *known, anyway=anyway), receipt=None)


class SkipsWithoutAReceipt(Rules):
    def held(self, ask: Claim, entry: Kept, now: int) -> ClaimStep:
        return replace(super().held(ask, entry, now), receipt=None)


class SkipsForTheQueued(Rules):
    def held(self, ask: Claim, entry: Kept, now: int) -> ClaimStep:
        step = super().held(ask, entry, now)
        skips = ask.skip and entry.owner != ask.owner
        return replace(step, receipt=self.skipped(ask, entry, now)) if skips else step


class SkipsForItself(Rules):
    def held(self, ask: Claim, entry: Kept, now: int) -> ClaimStep:
        step = super().held(ask, entry, now)
        skips = ask.skip and entry.state == "running"
        return replace(step, receipt=self.skipped(ask, entry, now)) if skips else step


class RevokedOnlyInTheQueue(Rules):
    def release(self, claimant: Claimant, ending: Ending, *known: Any, anyway: bool = False) -> Step[bool]:
        step = super().release(claimant, ending, *known, anyway=anyway)
        return replace(step, receipt=None) if anyway and step.entry is None else step


class RevokedFreesTheRunning(Rules):
    def may_free(self, claimant: Claimant, entry: Kept, anyway: bool) -> bool:
        return (anyway and entry.owner == claimant.owner) or super().may_free(claimant, entry, anyway)


class RevokedOverwritesAnEnd(Rules):
    def release(self, claimant: Claimant, ending: Ending, *known: Any, anyway: bool = False) -> Step[bool]:
        step = super().release(claimant, ending, *known, anyway=anyway)
        return replace(step, receipt=self.receipt(claimant, ending, None, known[-1])) if anyway else step


class ReleaseReplacesAnEnd(Rules):
    def keeps_end(self, own: Receipt, ending: Ending, anyway: bool) -> bool:
        return anyway and super().keeps_end(own, ending, anyway)


class ReleaseBesideAnEndIsNotRemembered(Rules):
    def kept_end(self, *known: Any) -> Receipt | None:
        return None


# -- copies ------------------------------------------------------------------------------------------------------------


class NoCopyGoesOn(Rules):
    def note_copy(self, ask: Claim, entry: Kept, now: int) -> tuple[Kept | None, bool]:
        own = entry.owner == ask.owner and entry.state == "running"
        return (None, False) if own else super().note_copy(ask, entry, now)


class NamedCopyIsDropped(Rules):
    def note_copy(self, ask: Claim, entry: Kept, now: int) -> tuple[Kept | None, bool]:
        return super().note_copy(ask, replace(entry, copy="?"), now)


class StampIsIgnored(Rules):
    def note_copy(self, ask: Claim, entry: Kept, now: int) -> tuple[Kept | None, bool]:
        return super().note_copy(replace(ask, stamp=ask.stamp and stamp_of(entry)), entry, now)


class CopyOutlivesItsGrant(Rules):
    def grant(self, ask: Claim, entry: Kept | None, now: int) -> ClaimStep:
        step = super().grant(ask, entry, now)
        if step.entry is None or entry is None:
            return step
        return replace(step, entry=replace(step.entry, copy=entry.copy, copy_until=entry.copy_until))


class UnmarkedIsNotPublished(Rules):
    def note_copy(self, ask: Claim, entry: Kept, now: int) -> tuple[Kept | None, bool]:
        unmarked = entry.owner != ask.owner and entry.copy_until == 0
        return (None, False) if unmarked else super().note_copy(ask, entry, now)


class OverdueIsNotPublished(Rules):
    def note_copy(self, ask: Claim, entry: Kept, now: int) -> tuple[Kept | None, bool]:
        marked = entry.owner != ask.owner and entry.copy_until > 0
        return (None, False) if marked else super().note_copy(ask, entry, now)


class StampDoesNotMove(Rules):
    def note_copy(self, ask: Claim, entry: Kept, now: int) -> tuple[Kept | None, bool]:
        noted, publish = super().note_copy(ask, entry, now)
        return (noted if entry.owner == ask.owner else None), publish


class MoverIsForgotten(Rules):
    def note_copy(self, ask: Claim, entry: Kept, now: int) -> tuple[Kept | None, bool]:
        return super().note_copy(ask, entry if entry.owner == ask.owner else replace(entry, copy=""), now)


class CopiesAreNotCounted(Rules):
    def note_copy(self, ask: Claim, entry: Kept, now: int) -> tuple[Kept | None, bool]:
        noted, publish = super().note_copy(ask, replace(entry, copies=1), now)
        return noted and replace(noted, copies=1), publish


class RequeueIsNoMark(Rules):
    def requeue(self, claimant: Claimant, seconds: float, entry: Kept | None, now: int, **copy: Any) -> Step[bool]:
        step = super().requeue(claimant, seconds, entry, now, **copy)
        return replace(step, entry=step.entry and replace(step.entry, copies=0, copy_until=0))


# -- starts ------------------------------------------------------------------------------------------------------------


class StartsAreNotCarriedOver(Rules):
    def grant(self, ask: Claim, entry: Kept | None, now: int) -> ClaimStep:
        return super().grant(ask, entry and replace(entry, starts=0), now)


class DeathsAreForgotten(Rules):
    def deaths_after(self, ask: Claim, entry: Kept, unended: bool) -> tuple[tuple[str, int, str], ...]:
        return ()


class EndForgetsDeaths(Rules):
    def ended(self, state: Any, ending: Ending, entry: Kept, now: int) -> Kept:
        return replace(super().ended(state, ending, entry, now), deaths=())


# -- by hand -----------------------------------------------------------------------------------------------------------


class ForgetDropsTheToken(Rules):
    def forget(self, entry: Kept | None, token: int, now: int) -> Step[bool]:
        step = super().forget(entry, token, now)
        return replace(step, entry=step.entry and replace(step.entry, token=0))


class ForgetsWhateverIsThere(Rules):
    def forget(self, entry: Kept | None, token: int, now: int) -> Step[bool]:
        return super().forget(entry, 0, now)


def _as_told(claimant: Claimant, now: int) -> Kept:
    return Kept("running", claimant.owner, claimant.attempt, token_of(claimant), now, now + 1, now)
