"""The rules of one key: what each verb does to an entry, as pure functions of the stored state and the store's time.

This is the whole state machine. A store that can lock a key while Python decides (memory, SQLite, anything with
compare-and-swap) loads the stored state, applies a rule and saves the step. A store that decides on the server (a Lua
script, a stored procedure) is a translation of this file; the contract suite compares the two by random walks. The
model in `tests/model` explores these same functions.

All times are microseconds of the store's clock.
"""

from __future__ import annotations

from dataclasses import replace

from taskguard.protocol.answers import completed_by_entry, completed_by_joined, held_by, leased, replayed
from taskguard.protocol.answers import seen as seen
from taskguard.protocol.kept import Kept as Kept
from taskguard.protocol.kept import Receipt as Receipt
from taskguard.protocol.kept import Step as Step
from taskguard.protocol.kept import stamp_of as stamp_of
from taskguard.protocol.store import MICROS as MICROS
from taskguard.protocol.store import Claim, Claimant, Completed, Ending, Held, Lease, State
from taskguard.protocol.store import micros as micros
from taskguard.protocol.store import token_of as token_of

RELEASE_MEMORY = 60 * MICROS
"""How long the receipt of a plain release is kept at most, unless it may be repeated longer (`Ending.repeat_for`)."""
DEATHS_REMEMBERED = 8
"""How many owners that died without an end keep their count of starts while others hold the key."""
AWAITED = "awaited:"
"""Prefix of the name of the one message from which a queued job may start."""
MOST_COPIES = 3
"""Maximum republications of one queued entry."""


class Rules:
    """The verbs. Each takes the stored state and returns a step, which the store saves."""

    # -- claim ---------------------------------------------------------------------------------------------------

    def claim(
        self, ask: Claim, entry: Kept | None, own: Receipt | None, twin: Receipt | None, now: int
    ) -> Step[Lease | Held | Completed]:
        """*own* is the receipt of the claiming owner, *twin* the receipt of the holder that it joins."""
        if entry is not None and self.is_repeat(ask, entry) and not self.ended_since(entry, own, now):
            again = replace(entry, until=now + micros(ask.lease))
            return Step(leased(ask.key, again), again)
        if own is not None and (own.how != "released" or own.attempt == ask.attempt):
            return Step(replayed(ask, own, entry, now))
        if twin is not None and twin.how in ("succeeded", "failed") and not self.is_running(ask, entry, now):
            return self.joined(ask, entry, twin, now)
        if entry is None:
            return self.grant(ask, None, now)
        if self.is_live(entry, now):
            if self.may_adopt(ask, entry, now) or self.may_replace(ask, entry):
                return self.grant(ask, entry, now)
            return self.held(ask, entry, now)
        if self.answers(ask, entry):
            return Step(completed_by_entry(ask.key, entry))
        if entry.held_until > now and entry.owner != ask.owner:
            return self.held(ask, entry, now)
        return self.grant(ask, entry, now)

    def is_repeat(self, ask: Claim, entry: Kept) -> bool:
        return entry.attempt == ask.attempt and entry.owner == ask.owner and entry.state == ask.state

    def ended_since(self, entry: Kept, own: Receipt | None, now: int) -> bool:
        """Whether the job has ended since its lease expired, by another copy of its message that joined a holder."""
        return own is not None and own.how != "released" and not self.is_live(entry, now)

    def is_live(self, entry: Kept, now: int) -> bool:
        return entry.state in ("queued", "running") and entry.until > now

    def is_running(self, ask: Claim, entry: Kept | None, now: int) -> bool:
        """Whether this same job runs elsewhere: then it ends as that run does, not as the holder it joins."""
        if entry is None or entry.owner != ask.owner:
            return False
        return entry.state == "running" and self.is_live(entry, now)

    def joined(self, ask: Claim, entry: Kept | None, twin: Receipt, now: int) -> Step[Lease | Held | Completed]:
        """The job ends as the holder that it joined. Its receipt is for copies of its message that name no holder."""
        until = now + micros(ask.keep_for)
        receipt = replace(twin, owner=ask.owner, attempt=ask.attempt, until=until, twin=twin.owner, answered=False)
        freed = None
        if entry is not None and entry.owner == ask.owner and entry.state == "queued":
            # Nobody will run it, so nobody must wait for it.
            freed = self.ended("free", Ending(how=twin.how, keep_for=entry.keep / MICROS), entry, now)
        return Step(completed_by_joined(ask.key, receipt), freed, receipt)

    def may_adopt(self, ask: Claim, entry: Kept, now: int) -> bool:
        # A requeued attempt is over: a late packet of its claim must not start the job again.
        mine = entry.owner == ask.owner and entry.requeued_by != ask.attempt
        return entry.state == "queued" and ask.state == "running" and mine and not self.awaits_another(ask, entry, now)

    def awaits_another(self, ask: Claim, entry: Kept, now: int) -> bool:
        """Whether the job must start from another message, which is on its way."""
        named = entry.copy.startswith(AWAITED) and entry.copy_until > now
        return named and entry.copy != AWAITED + ask.copy

    def may_replace(self, ask: Claim, entry: Kept) -> bool:
        return entry.state == "queued" and ask.replace_queued and entry.owner != ask.owner

    def answers(self, ask: Claim, entry: Kept) -> bool:
        if entry.state != "done":
            return False
        reused = ask.reuse == "anything" or (ask.reuse == "success" and entry.how == "succeeded")
        return reused or entry.owner == ask.owner

    def grant(self, ask: Claim, entry: Kept | None, now: int) -> Step[Lease | Held | Completed]:
        unended = entry is not None and entry.state in ("queued", "running")
        again = unended and entry is not None and entry.owner == ask.owner
        deaths = () if entry is None else self.deaths_after(ask, entry, unended)
        before = entry.starts if again and entry is not None else _starts_of(ask.owner, entry)
        granted = Kept(
            state=ask.state,
            owner=ask.owner,
            attempt=ask.attempt,
            token=self.next_token(ask, entry, now),
            since=now,
            until=now + micros(ask.lease),
            keep=micros(ask.keep_for),
            starts=before + 1 if ask.state == "running" else before,
            took_over=entry is not None and entry.state == "running",
            payload=ask.payload,
            requeued_by=entry.requeued_by if again and entry is not None else "",
            deaths=deaths,
            label=ask.label or (entry.label if entry is not None else ""),
            where=ask.where,
        )
        return Step(leased(ask.key, granted), granted)

    def next_token(self, ask: Claim, entry: Kept | None, now: int) -> int:
        # Seeded by the clock: even if the entry is evicted or wiped, tokens only rise.
        return max(entry.token + 1 if entry else 0, ask.floor + 1, now)

    def deaths_after(self, ask: Claim, entry: Kept, unended: bool) -> tuple[tuple[str, int, str], ...]:
        others = [death for death in entry.deaths if death[0] not in (ask.owner, entry.owner)]
        if unended and entry.owner != ask.owner and entry.starts:
            others.append((entry.owner, entry.starts, entry.payload))
        return tuple(others[-DEATHS_REMEMBERED:])

    def held(self, ask: Claim, entry: Kept, now: int) -> Step[Lease | Held | Completed]:
        noted, publish = self.note_copy(ask, entry, now)
        receipt = None
        if ask.skip and entry.owner != ask.owner and entry.state != "queued":
            receipt = self.skipped(ask, entry, now)
        answer = held_by(ask.key, entry, now, publish)
        if publish and entry.owner == ask.owner and entry.state == "running":
            answer = replace(answer, stamp=stamp_of(noted or entry))
        return Step(answer, noted, receipt)

    def skipped(self, ask: Claim, entry: Kept, now: int) -> Receipt:
        until = now + micros(ask.keep_for)
        return Receipt(ask.owner, ask.attempt, "skipped", entry.token, now, until, twin=entry.owner)

    def note_copy(self, ask: Claim, entry: Kept, now: int) -> tuple[Kept | None, bool]:
        """Whether the caller must publish the holder's message, and the entry that records this for the next caller."""
        overdue = entry.copy_until <= now
        if entry.owner == ask.owner:
            if entry.state == "queued":
                return None, True
            if not ask.copy or not (overdue or entry.copy == ask.copy):
                return None, False
            if ask.copy_for <= 0 or ask.stamp != stamp_of(entry):
                # Not published yet: if the worker died before publishing, the name would stay. Or published, and
                # perhaps already dropped in favour of a copy that was named in the meantime.
                return None, True
            return replace(entry, copy=ask.copy, copy_until=now + micros(ask.copy_for)), True
        if entry.state != "queued" or ask.copy_for <= 0:
            return None, False
        if entry.copy_until == 0 or entry.copy == ask.attempt:  # not published yet; or repeated after a lost reply
            return None, True
        if overdue and entry.copies <= MOST_COPIES:
            wait = micros(ask.copy_for) * 2**entry.copies
            return replace(entry, copy=ask.attempt, copies=entry.copies + 1, copy_until=now + wait), True
        return None, False

    # -- the verbs of a holder -----------------------------------------------------------------------------------

    def is_newest(self, claimant: Claimant, entry: Kept) -> bool:
        # Compare the token too, if it is known: a late claim packet is granted again under its old attempt.
        if not claimant.attempt or entry.attempt != claimant.attempt or entry.owner != claimant.owner:
            return False
        return token_of(claimant) in (0, entry.token)

    def renew(self, lease: Lease, seconds: float, entry: Kept | None, now: int) -> Step[bool]:
        if entry is None or entry.state != "running" or not self.is_newest(lease, entry):
            return Step(False)
        return Step(True, replace(entry, until=now + micros(seconds)))

    def requeue(
        self,
        claimant: Claimant,
        seconds: float,
        entry: Kept | None,
        now: int,
        *,
        own: Receipt | None = None,
        copy_for: float,
        keep_starts: bool,
        copy: str = "",
    ) -> Step[bool]:
        if entry is None:
            return Step(False)
        if entry.state in ("queued", "running") and self.is_newest(claimant, entry):
            if own is not None and own.how != "released":
                # Another worker has revoked it in the meantime: nobody will run it, so nobody must wait for it.
                over = self.ended("free", Ending(how=own.how, keep_for=entry.keep / MICROS), entry, now)
                return Step(True, replace(over, requeued_by=claimant.attempt), self.prolonged(own, entry.keep, now))
            retried = entry.state == "running"
            return Step(
                True,
                replace(
                    entry,
                    state="queued",
                    attempt="",
                    since=now if retried else entry.since,
                    until=now + micros(seconds),
                    starts=0 if retried and not keep_starts else entry.starts,
                    copy=AWAITED + copy if copy else "",
                    copies=1,
                    copy_until=now + micros(copy_for),
                    requeued_by=claimant.attempt,
                ),
            )
        mine = entry.owner == claimant.owner and entry.requeued_by == claimant.attempt != ""
        if mine and not copy and entry.state == "queued" and entry.copy.startswith(AWAITED):
            return Step(True, replace(entry, copy=""))  # the named message was not published
        return Step(mine)

    def mark(
        self, claimant: Claimant, seconds: float, entry: Kept | None, now: int, *, own: Receipt | None, copy_for: float
    ) -> Step[bool]:
        # A caller of `mark` never ran the job, so it never changes a running entry, even under its own attempt.
        if entry is not None and entry.state == "running" and self.is_newest(claimant, entry):
            return Step(False)
        return self.requeue(claimant, seconds, entry, now, own=own, copy_for=copy_for, keep_starts=True)

    def complete(
        self, claimant: Claimant, ending: Ending, entry: Kept | None, own: Receipt | None, now: int
    ) -> Step[bool]:
        if entry is not None and entry.state == "running" and self.is_newest(claimant, entry):
            done = self.ended("done", ending, entry, now)
            return Step(True, done, self.receipt(claimant, ending, entry, now))
        return self.told_before(claimant, ending, own)

    def release(
        self,
        claimant: Claimant,
        ending: Ending,
        entry: Kept | None,
        own: Receipt | None,
        now: int,
        *,
        anyway: bool = False,
    ) -> Step[bool]:
        freed = entry if entry is not None and self.may_free(claimant, entry, anyway) else None
        if freed is None and not anyway:
            return self.told_before(claimant, ending, own)
        free = self.ended("free", ending, freed, now) if freed else None
        if own is not None and self.keeps_end(own, ending, anyway):
            return Step(True, free, self.kept_end(claimant, ending, own, freed, now, anyway))
        receipt = self.receipt(claimant, ending, freed, now)
        if anyway and own is not None:
            # That attempt may repeat its plain release; this release returns the same answer in any case.
            receipt = replace(receipt, attempt=own.attempt)
        return Step(True, free, receipt)

    def keeps_end(self, own: Receipt, ending: Ending, anyway: bool) -> bool:
        return own.how != "released" and (anyway or ending.how == "released")

    def kept_end(
        self, claimant: Claimant, ending: Ending, own: Receipt, freed: Kept | None, now: int, anyway: bool
    ) -> Receipt | None:
        """The end that the job already has, with what this release adds to it."""
        kept = own
        if freed is not None:
            kept = self.prolonged(kept, micros(ending.keep_for), now)
            if not anyway:
                kept = replace(kept, attempt=claimant.attempt)  # a repeated call gets the same answer
        if ending.answered and own.how == ending.how:  # whoever ended it
            kept = replace(kept, answered=True)
        return kept if kept != own else None

    def prolonged(self, own: Receipt, keep: int, now: int) -> Receipt:
        """A run of the job lasted until now: copies of its message may arrive for *keep* from now on."""
        return replace(own, until=max(own.until, now + keep))

    def may_free(self, claimant: Claimant, entry: Kept, anyway: bool) -> bool:
        if entry.state == "queued" and anyway and entry.owner == claimant.owner:
            return True
        return entry.state in ("queued", "running") and self.is_newest(claimant, entry)

    def ended(self, state: State, ending: Ending, entry: Kept, now: int) -> Kept:
        keep = micros(ending.keep_for)
        return Kept(
            state=state,
            owner=entry.owner,
            attempt="",
            token=entry.token,
            since=now,
            until=now + max(keep, micros(ending.linger)),
            keep=keep,
            payload=entry.payload,
            held_until=now + micros(ending.linger) if ending.linger else 0,
            requeued_by=entry.requeued_by,
            deaths=entry.deaths,
            how=ending.how,
            outcome=ending.outcome if state == "done" else None,
            label=entry.label,
            where=entry.where,
        )

    def receipt(self, claimant: Claimant, ending: Ending, entry: Kept | None, now: int) -> Receipt:
        keep = micros(ending.keep_for)
        if ending.how == "released":
            keep = max(min(keep, RELEASE_MEMORY), micros(ending.repeat_for))
        return Receipt(
            owner=claimant.owner,
            attempt=claimant.attempt,
            how=ending.how,
            token=entry.token if entry else 0,
            at=now,
            until=now + keep,
            outcome=ending.outcome,
            answered=ending.answered,
        )

    def told_before(self, claimant: Claimant, ending: Ending, own: Receipt | None) -> Step[bool]:
        """The answer to a repeated verb that was carried out before and whose reply was lost."""
        if own is None or own.attempt != claimant.attempt or ending.how not in (own.how, "released"):
            return Step(False)
        if ending.answered and not own.answered and own.how == ending.how:
            return Step(True, None, replace(own, answered=True))
        return Step(True)

    # -- by hand -------------------------------------------------------------------------------------------------

    def forget(self, entry: Kept | None, token: int, now: int) -> Step[bool]:
        if entry is None or token not in (0, entry.token):
            return Step(False)
        free = Kept(
            "free", "", "", entry.token, now, now + entry.keep, entry.keep, label=entry.label, where=entry.where
        )
        return Step(True, free)


def _starts_of(owner: str, entry: Kept | None) -> int:
    return next((starts for name, starts, _ in entry.deaths if name == owner), 0) if entry else 0
