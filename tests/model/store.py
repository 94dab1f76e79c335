"""The store of the model: the real rules, applied to entries in a normal form.

Time does not run here. Every verb is asked at the same `NOW`, and a deadline is only live or past: "the lease runs
out" is a step that moves the deadline behind `NOW`. Tokens are ranks among the tokens that anybody still remembers.
So there are few different contents of the store. Each verb is computed once for each of them, and then remembered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, NamedTuple, TypeVar

from taskguard.protocol.rules import AWAITED, Kept, Receipt, Rules, Step, micros, stamp_of
from taskguard.protocol.store import Claim, Claimant, Completed, Ending, Held, How, Lease

Known = TypeVar("Known")

KEY = "key"
NAMES = "ABCDEZ"
CALLER = NAMES.index("Z")
"""A later caller of the same key, whose own job is not followed."""

NOW = 10_000_000
LEASE = 10.0
KEEP = 1000.0
COPY_FOR = 5.0
LIVE = NOW + micros(LEASE)
PAST = NOW - 1

DEAD = "x"
"""The attempt of somebody who is gone: it equals no attempt that is still asked with."""


GAP = 1000
"""Between the tokens that anybody remembers there is room for others: time passes in between."""


class Ask(NamedTuple):
    """A claim that a machine asked for, and what its signs stand for."""

    job: int
    attempt: str
    claim: int
    """See `Store.asks`."""
    copy: int = 0
    seen: int = 0
    """The token in the stamp that it gives back, if it names its copy; 0 if no stamp of this entry."""
    floor: int = 0


class Holder(NamedTuple):
    """Who calls a verb. With token 0 it knows the attempt alone, as a parent does that settles for its child."""

    job: int
    attempt: str
    token: int = 0


class Answer(NamedTuple):
    """What a claim was told: `lease`, `held` or `completed`."""

    kind: str
    owner: int
    token: int = 0
    state: str = ""
    attempt: str = ""
    publish: bool = False
    starts: int = 0
    how: str = ""
    payload: str = ""


class Stored:
    """What the store knows of the key. Equal ones are one object, so they hash and compare by identity."""

    __slots__ = (
        "attempt",
        "attempts",
        "copy",
        "entry",
        "is_awaited",
        "live",
        "memo",
        "mover",
        "owner",
        "receipts",
        "state",
        "token",
    )

    def __init__(self, entry: Kept | None, receipts: tuple[Receipt | None, ...]) -> None:
        self.entry = entry
        self.receipts = receipts
        self.state = entry.state if entry else ""
        self.owner = _index(entry.owner) if entry else -1
        self.token = entry.token if entry else 0
        self.attempt = entry.attempt if entry else ""
        # A running entry names the copy that goes on; a queued one the message of a retry, which alone may start it,
        # or the attempt that was last told to publish.
        named = entry.copy if entry else ""
        self.is_awaited = named.startswith(AWAITED)
        has_name = self.is_awaited or (entry is not None and entry.state == "running")
        self.copy = int(named.removeprefix(AWAITED) or 0) if has_name else 0
        self.mover = named if not has_name else ""
        requeued_by = entry.requeued_by if entry else ""
        self.attempts = {self.attempt, self.mover, requeued_by, *[kept.attempt for kept in receipts if kept]}
        self.live = entry is not None and entry.state in ("queued", "running") and entry.until > NOW
        self.memo: dict[Any, Any] = {}

    def __repr__(self) -> str:
        if self.entry is None:
            return "absent"
        clock = "" if self.live or self.state in ("free", "done") else ", run out"
        ends = "".join(f", {NAMES[job]} {kept.how}" for job, kept in enumerate(self.receipts) if kept)
        return f"{self.state} {self.entry.owner} t{self.token} by {self.attempt or '-'}{clock}{ends}"

    def how(self, job: int) -> str:
        """How the store says that the job ended; empty if it does not know of an end."""
        receipt = self.receipts[job]
        return receipt.how if receipt and receipt.how != "released" else ""


Told = tuple[bool, Stored]


class Store:
    """The verbs. *ahead*: the clock is ahead of all tokens; else it stands still and tokens outrun it."""

    def __init__(self, rules: Rules, jobs: int, *, ahead: bool = True, counts_starts: bool = False) -> None:
        self._rules = rules
        self._ahead = ahead
        self._counts_starts = counts_starts
        self._all_stored: dict[tuple[Kept | None, tuple[Receipt | None, ...]], Stored] = {}
        self._claims: list[Claim] = []
        self._numbers: dict[Any, int] = {}
        self.empty = self._stored(None, (None,) * jobs)

    # -- verbs ---------------------------------------------------------------------------------------------------------

    def claim(self, stored: Stored, ask: Ask, newest: int) -> tuple[Answer, Stored]:
        return self._once(stored, ("claim", ask, newest), lambda: self._claim(stored, ask, newest))

    def asks(self, claim: Claim) -> int:
        """The number of this claim, which has signs for what is not the machine's business."""
        name = tuple(getattr(claim, each.name) for each in fields(claim) if each.name != "meanwhile")
        if name not in self._numbers:
            self._numbers[name] = len(self._claims)
            self._claims.append(claim)
        return self._numbers[name]

    def claim_of(self, ask: Ask) -> Claim:
        return self._claims[ask.claim]

    def _claim(self, stored: Stored, ask: Ask, newest: int) -> tuple[Answer, Stored]:
        asked = self._claims[ask.claim]
        claim = replace(
            asked,
            attempt=ask.attempt,
            floor=self._value(ask.floor) if ask.floor else 0,
            copy=str(ask.copy) if ask.copy else "",
            stamp=self._stamp(stored, ask) if asked.stamp else "",
        )
        own = stored.receipts[ask.job] if ask.job != CALLER else None
        twin = stored.receipts[NAMES.index(claim.join)] if claim.join else None
        step = self._rules.claim(claim, self._entry(stored), own, twin, NOW)
        return self._answer(step.answer, newest), self._saved(stored, step, newest)

    def _stamp(self, stored: Stored, ask: Ask) -> str:
        entry = self._entry(stored)
        return stamp_of(entry) if entry and ask.seen == stored.token else "another"

    def renew(self, stored: Stored, holder: Holder) -> Told:
        return self._verb(
            stored, ("renew", holder), lambda entry: self._rules.renew(self._lease(holder), LEASE, entry, NOW)
        )

    def requeue(self, stored: Stored, holder: Holder, *, keep_starts: bool = False, copy: int = 0) -> Told:
        def ask(entry: Kept | None) -> Step[bool]:
            claimant, own = self._claimant(holder), stored.receipts[holder.job]
            return self._rules.requeue(
                claimant,
                LEASE,
                entry,
                NOW,
                own=own,
                copy_for=COPY_FOR,
                keep_starts=keep_starts,
                copy=str(copy) if copy else "",
            )

        return self._verb(stored, ("requeue", holder, keep_starts, copy), ask)

    def mark(self, stored: Stored, holder: Holder) -> Told:
        def ask(entry: Kept | None) -> Step[bool]:
            claimant, own = self._claimant(holder), stored.receipts[holder.job]
            return self._rules.mark(claimant, LEASE, entry, NOW, own=own, copy_for=COPY_FOR)

        return self._verb(stored, ("mark", holder), ask)

    def complete(self, stored: Stored, holder: Holder, how: How = "succeeded", linger: float = 0.0) -> Told:
        def ask(entry: Kept | None) -> Step[bool]:
            ending = Ending(how=how, keep_for=KEEP, linger=linger)
            return self._rules.complete(self._claimant(holder), ending, entry, stored.receipts[holder.job], NOW)

        return self._verb(stored, ("complete", holder, how, linger), ask)

    def release(self, stored: Stored, holder: Holder, how: How, linger: float = 0.0, *, anyway: bool = False) -> Told:
        def ask(entry: Kept | None) -> Step[bool]:
            ending = Ending(how=how, keep_for=KEEP, linger=linger)
            own = stored.receipts[holder.job]
            return self._rules.release(self._claimant(holder), ending, entry, own, NOW, anyway=anyway)

        return self._verb(stored, ("release", holder, how, linger, anyway), ask)

    def forget(self, stored: Stored, token: int) -> Told:
        value = self._value(token) if token else 0
        return self._verb(stored, ("forget", token), lambda entry: self._rules.forget(entry, value, NOW))

    # -- what is no verb: time, loss, and names that change ------------------------------------------------------------

    def run_out(self, stored: Stored) -> Stored:
        """The claim's deadline passes; the entry is known still if it outlives its claim."""
        return self._changed(stored, "run out", until=PAST)

    def age_copy(self, stored: Stored) -> Stored:
        """The time passes for which a published copy is trusted to be on its way."""
        return self._changed(stored, "age copy", copy_until=PAST)

    def stop_lingering(self, stored: Stored) -> Stored:
        return self._changed(stored, "stop lingering", held_until=0)

    def drop_entry(self, stored: Stored) -> Stored:
        """The entry is forgotten in time; receipts stay."""
        return self._once(stored, "drop entry", lambda: self._stored(None, stored.receipts))

    def retoken(self, stored: Stored, token: int) -> Stored:
        return self._changed(stored, ("token", token), token=token)

    def recopy(self, stored: Stored, copy: int) -> Stored:
        name = str(copy) if copy else ""
        return self._changed(stored, ("copy", copy), copy=AWAITED + name if stored.is_awaited else name)

    def rename(self, stored: Stored, names: tuple[tuple[str, str], ...]) -> Stored:
        """Attempts are called otherwise from now on."""
        if not any(old in stored.attempts for old, _ in names):
            return stored
        return self._once(stored, ("rename", names), lambda: self._renamed(stored, dict(names)))

    def _renamed(self, stored: Stored, names: dict[str, str]) -> Stored:
        entry = stored.entry
        if entry is not None:
            requeued_by = names.get(entry.requeued_by, entry.requeued_by)
            copy = names.get(entry.copy, entry.copy) if stored.mover else entry.copy
            entry = replace(
                entry,
                attempt=names.get(entry.attempt, entry.attempt),
                requeued_by="" if requeued_by == DEAD else requeued_by,
                copy="" if copy == DEAD else copy,
            )
        receipts = tuple(
            receipt and replace(receipt, attempt=names.get(receipt.attempt, receipt.attempt))
            for receipt in stored.receipts
        )
        return self._stored(entry, receipts)

    def _changed(self, stored: Stored, name: Any, **changes: Any) -> Stored:
        assert stored.entry is not None
        entry = stored.entry
        return self._once(stored, name, lambda: self._stored(replace(entry, **changes), stored.receipts))

    # -- between the model's words and the rules' ----------------------------------------------------------------------

    def _once(self, stored: Stored, name: Any, compute: Callable[[], Known]) -> Known:
        known: Known | None = stored.memo.get(name)
        if known is None:
            known = stored.memo[name] = compute()
        return known

    def _verb(self, stored: Stored, name: Any, ask: Callable[[Kept | None], Step[bool]]) -> Told:
        known: Told | None = stored.memo.get(name)
        if known is None:
            step = ask(self._entry(stored))
            known = stored.memo[name] = step.answer, self._saved(stored, step, stored.token)
        return known

    def _entry(self, stored: Stored) -> Kept | None:
        entry = stored.entry
        if entry is None or entry.gone_at <= NOW:
            return None
        return replace(entry, token=self._value(entry.token))

    def _claimant(self, holder: Holder) -> Claimant:
        return self._lease(holder) if holder.token else Claimant(KEY, NAMES[holder.job], holder.attempt)

    def _lease(self, holder: Holder) -> Lease:
        return Lease(KEY, NAMES[holder.job], holder.attempt, token=self._value(holder.token))

    def _value(self, rank: int) -> int:
        return rank if self._ahead else NOW + round((rank - 1) * GAP)

    def _rank(self, token: int, newest: int) -> Any:
        """A fraction for a token between two that are remembered: the normal form counts them anew."""
        if self._ahead:
            return newest + 1 if token >= NOW else token
        whole, part = divmod(token - NOW, GAP)
        return max(0, whole + 1 + part / GAP if part else whole + 1)

    def _answer(self, answer: Lease | Held | Completed, newest: int) -> Answer:
        owner = _index(answer.owner)
        if isinstance(answer, Completed):
            return Answer("completed", owner, how=answer.how)
        token = self._rank(answer.token, newest)
        if isinstance(answer, Lease):
            return Answer("lease", owner, token, answer.state, answer.attempt, starts=answer.starts)
        return Answer("held", owner, token, answer.state, answer.attempt, answer.publish, payload=answer.payload)

    def _saved(self, stored: Stored, step: Step[Any], newest: int) -> Stored:
        entry, receipts = stored.entry, stored.receipts
        if step.entry is not None:
            entry = self._normal(step.entry, newest)
        if step.receipt is not None:
            job = _index(step.receipt.owner)
            receipts = (*receipts[:job], _normal_receipt(step.receipt), *receipts[job + 1 :])
        return self._stored(entry, receipts)

    def _normal(self, entry: Kept, newest: int) -> Kept:
        """What no rule decides by is the same for all; what is counted only for `max_starts` is counted only there."""
        counted = self._counts_starts
        return replace(
            entry,
            token=self._rank(entry.token, newest),
            since=NOW,
            until=LIVE if entry.until > NOW else PAST,
            starts=entry.starts if counted else 0,
            deaths=entry.deaths if counted else (),
            took_over=False,
            copy_until=_normal_time(entry.copy_until),
            held_until=LIVE if entry.held_until > NOW else 0,
        )

    def _stored(self, entry: Kept | None, receipts: tuple[Receipt | None, ...]) -> Stored:
        if entry is not None and entry.gone_at <= NOW:
            entry = None
        stored = self._all_stored.get((entry, receipts))
        if stored is None:
            stored = self._all_stored[entry, receipts] = Stored(entry, receipts)
        return stored


def _normal_receipt(receipt: Receipt) -> Receipt:
    return replace(receipt, token=0, at=NOW, until=LIVE, answered=False)


def _normal_time(time: int) -> int:
    if time == 0:
        return 0
    return LIVE if time > NOW else PAST


def _index(owner: str) -> int:
    return NAMES.index(owner) if owner else -1
