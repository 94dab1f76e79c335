"""Entries and decisions, for people and for programs."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Any

from taskguard.cli.output import age, short
from taskguard.history import Decision, decisions
from taskguard.keys.maker import space_of
from taskguard.protocol.store import Entry, Store

STATES = ("queued", "running", "ran-out", "done", "free")


def state_of(entry: Entry) -> str:
    """The state of the entry; `ran-out` for a claim whose lease has expired, which counts as free."""
    return "ran-out" if entry.state in ("queued", "running") and entry.remaining <= 0 else entry.state


def age_of(entry: Entry) -> float:
    return max(0.0, time.time() - entry.since)


def entry_as_json(entry: Entry) -> dict[str, Any]:
    return {
        "key": entry.key,
        "label": entry.label,
        "task": space_of(entry.key),
        "state": state_of(entry),
        "where": entry.where,
        "owner": entry.owner,
        "token": entry.token,
        "since": entry.since,
        "remaining": round(entry.remaining, 3),
        "starts": entry.starts,
        "copies": entry.copies,
        "how": entry.how,
        "outcome_bytes": None if entry.outcome is None else len(entry.outcome),
    }


def decision_as_json(decision: Decision) -> dict[str, Any]:
    event = decision.event
    return {
        "at": decision.at,
        "where": decision.where,
        "kind": event.kind,
        "key": event.key,
        "task": space_of(event.key),
        "owner": event.owner,
        "token": event.token,
        "holder": event.holder,
        "state": event.state,
        "since": event.since,
        "detail": event.detail,
        "differs": list(event.differs),
        "arguments": event.arguments or None,
    }


class Readable:
    """Shows keys as people read them: `shop.charge order_id=42`.

    A key made of all arguments has no label. It appears as the beginning of its digest, with the arguments if the
    history has them.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._arguments: dict[str, str] | None = None

    def entry(self, entry: Entry) -> str:
        return self.key(entry.key, entry.label)

    def key(self, key: str, label: str = "") -> str:
        space = space_of(key)
        if space == key:
            return key
        _, _, digest, *part = key[len(space) :].split(":")
        shown = [space, label or digest[:8], *([] if label else [self._called_with(key)]), *part[:1]]
        return " ".join(filter(None, shown))

    def _called_with(self, key: str) -> str:
        if self._arguments is None:
            found = decisions(self._store)
            self._arguments = {d.event.key: d.event.arguments for d in found if d.event.arguments}
        arguments = self._arguments.get(key, "")
        return f"({arguments})" if arguments else ""


def moment(at: float) -> str:
    return f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def clock_time(at: float) -> str:
    """The time of day, for a list of recent decisions."""
    return f"{datetime.fromtimestamp(at, timezone.utc):%H:%M:%S}"


def summary(decision: Decision, started: bool = False) -> str:
    """The decision in a few words; *started* if the job ran later."""
    event = decision.event
    words = _WORDS.get((event.kind, event.state)) or event.kind.replace("_", " ")
    if event.kind == "duplicate":
        holder = f"job {short(event.holder)} had been {event.state} for {age(decision.at - event.since)}"
        words = f"waited: {holder}" if started else f"skipped: {holder}"
    elif event.kind == "reused":
        words = f"reused the outcome of job {short(event.holder)}: {event.state}"
    if event.differs:
        words += f"; differs in {', '.join(event.differs)}"
    if event.arguments:
        words += f"; called with {event.arguments}"
    return f"{words} ({event.detail})" if event.detail else words


_WORDS = {
    ("claimed", "queued"): "queued",
    ("claimed", "running"): "started",
    ("took_over", "running"): "took over: the holder's lease had expired",
    ("took_over", "queued"): "queued in place of a holder whose lease had expired",
    ("lost", ""): "lost its lease",
    ("refused", ""): "its outcome was refused: a newer holder owns this work",
    ("fence_refused", ""): "its write was refused: the resource has seen a higher token",
    ("requeued", ""): "requeued",
}
