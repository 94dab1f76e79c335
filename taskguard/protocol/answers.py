"""The answers that the rules make from what a store keeps: seconds instead of microseconds, no private fields."""

from __future__ import annotations

from dataclasses import replace

from taskguard.protocol.kept import Kept, Receipt
from taskguard.protocol.store import MICROS, Claim, Completed, Entry, Held, Lease


def seen(key: str, entry: Kept, now: int) -> Entry:
    """The entry as `get` and `scan` return it."""
    return Entry(
        key=key,
        state=entry.state,
        owner=entry.owner,
        attempt=entry.attempt,
        token=entry.token,
        since=entry.since / MICROS,
        remaining=(entry.until - now) / MICROS,
        starts=entry.starts,
        copies=entry.copies,
        payload=entry.payload,
        how=entry.how,
        outcome=entry.outcome,
        unended=tuple((owner, payload) for owner, _, payload in entry.deaths),
        label=entry.label,
        where=entry.where,
    )


def leased(key: str, entry: Kept) -> Lease:
    return Lease(
        key,
        entry.owner,
        entry.attempt,
        token=entry.token,
        state="queued" if entry.state == "queued" else "running",
        starts=entry.starts,
        took_over=entry.took_over,
    )


def held_by(key: str, entry: Kept, now: int, publish: bool) -> Held:
    ends = entry.until if entry.state in ("queued", "running") else entry.held_until
    return Held(
        key,
        entry.owner,
        # A caller that finds a queued entry may mark it. With a running entry's attempt it could end that lease.
        entry.attempt if entry.state == "queued" else "",
        token=entry.token,
        state=entry.state,
        since=entry.since / MICROS,
        remaining=(ends - now) / MICROS,
        payload=entry.payload,
        publish=publish,
    )


def replayed(ask: Claim, own: Receipt, entry: Kept | None, now: int) -> Held | Completed:
    """The end of the claiming job. A claim repeated after a lost reply gets the same answer again."""
    if own.attempt == ask.attempt and own.how == "skipped":
        return _held_again(ask, own, entry, now)
    if own.attempt == ask.attempt and own.twin:
        return completed_by_joined(ask.key, own)
    return _completed(ask.key, own)


def _held_again(ask: Claim, own: Receipt, entry: Kept | None, now: int) -> Held:
    if entry is not None and entry.token == own.token and entry.state == "running":
        return held_by(ask.key, entry, now, False)
    return Held(ask.key, own.twin, "", token=own.token, state="running", since=own.at / MICROS, remaining=0.0)


def _completed(key: str, receipt: Receipt) -> Completed:
    return Completed(
        key=key,
        owner=receipt.owner,
        how=receipt.how,
        token=receipt.token,
        at=receipt.at / MICROS,
        outcome=receipt.outcome,
        twin=receipt.twin,
        answered=receipt.answered,
    )


def completed_by_joined(key: str, joined: Receipt) -> Completed:
    return replace(_completed(key, joined), owner=joined.twin, twin="")


def completed_by_entry(key: str, entry: Kept) -> Completed:
    return Completed(
        key=key,
        owner=entry.owner,
        how=entry.how or "succeeded",
        token=entry.token,
        at=entry.since / MICROS,
        outcome=entry.outcome,
        payload=entry.payload,
    )
