"""Which messages of a silent worker to redeliver: only the decision, without a broker or a store.

Redis does not notice the death of a worker. A fetched message stays in kombu's hash until it is acknowledged, or until
the visibility timeout (an hour by default) expires. The guard makes an early redelivery safe, so the other workers need
not wait for that. What they know of a message, and what they do:

| the worker that fetched it | the store says of the job | then |
|---|---|---|
| stamped it recently | anything | leave it: that worker runs it, acknowledges it, or settles for its child |
| is silent, less than a lease | anything | leave it: the worker may only be busy |
| is silent | it runs, its lease is alive | leave it: its process outlived the worker's parent, or another copy runs |
| is silent | it runs, its lease has expired | give it back: another worker takes over the key |
| is silent | queued for this job, or held by another one | give it back: it was fetched and not started |
| is silent | nothing, or the key is free | give it back: not claimed before its body starts, or released |
| is silent | this job has ended | give it back: its callbacks may not be sent yet; else the copy is dropped |
| is silent | the store does not answer | leave it, and ask again |

A message whose eta is in the future is left until then: its job is not late. A message that was given back three times
without a start of its job in between is left to the visibility timeout: it may be what kills the workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, tzinfo
from typing import Any, NamedTuple

from taskguard.celery.headers import ID, RESCUED, envelope_in
from taskguard.engine.envelope import Envelope
from taskguard.engine.layers import key_layer
from taskguard.protocol.entry_names import job_of
from taskguard.protocol.policy import Policy
from taskguard.protocol.store import Entry
from taskguard.schedule.note import Note

SILENCE = 6.0
"""Seconds without a stamp after which a message's worker counts as silent: four stamps are missing."""
MOST_TIMES = 3
"""How often a message is given back without a start of its job in between."""

LEFT_ALONE = 60.0
"""Seconds until the store is asked again about a message that was given back `MOST_TIMES`."""


class Rescued(NamedTuple):
    """How often a message was given back before, as its header says."""

    times: int = 0
    token: int = 0
    """The token of the job at that time: a higher token means that it started since."""


class Orphan(NamedTuple):
    """A guarded message whose worker may be dead."""

    id: str
    task: str
    envelope: Envelope
    eta: float | None = None
    """Seconds since 1970; infinite if it is unreadable."""
    rescued: Rescued = Rescued()

    @property
    def name(self) -> str:
        return f"{self.task}[{self.id}]"


def is_of_store(headers: Any, store: str) -> bool:
    """Whether a message with these headers has our envelope, and its entries are in the store of that name."""
    if not isinstance(headers, Mapping) or not headers.get(ID) or headers.get(ID) != headers.get("id"):
        return False  # a caller may pass the headers of one job to another, which they do not guard
    said = headers.get("taskguard_store")
    return not said or said == store


def orphan_in(headers: Any, store: str, zone: tzinfo) -> Orphan | None:
    """The message with these headers; None if it is not one of this store."""
    if not is_of_store(headers, store):
        return None
    job = str(headers["id"])
    envelope = envelope_in(headers, job)
    if not envelope.key and Note.of(envelope.slot) is None:
        return None  # nothing guards it
    return Orphan(job, str(headers.get("task")), envelope, _eta(headers.get("eta"), zone), _rescued(headers))


def entries_of(orphan: Orphan, policy: Policy | None) -> list[str]:
    """The entries that the job runs under. *policy* is None if this worker does not have the task's code."""
    slot, key = Note.of(orphan.envelope.slot), orphan.envelope.key
    entries = [slot.run] if slot is not None else []
    if key and policy is not None:
        entries.append(key_layer(policy, orphan.envelope, orphan.id, slot).entry)
    elif key:
        entries += [key, job_of(key, orphan.id)]
    return entries


def due_in(orphan: Orphan, silent_for: float, lease: float, now: float) -> float:
    """Seconds until the worker counts as dead and the job is due; 0 if both hold now."""
    return max(0.0, SILENCE - silent_for, lease - silent_for, 0.0 if orphan.eta is None else orphan.eta - now)


def rescue(orphan: Orphan, entries: Iterable[Entry | None]) -> Rescued | float:
    """The header of the message if it is given back now; else the seconds to leave it alone."""
    own = [entry for entry in entries if entry is not None and entry.owner == orphan.id]
    runs_for = max((entry.remaining for entry in own if entry.state == "running"), default=0.0)
    if runs_for > 0:
        return runs_for
    token = max((entry.token for entry in own), default=0)
    times = orphan.rescued.times if orphan.rescued.token == token else 0
    return LEFT_ALONE if times >= MOST_TIMES else Rescued(times + 1, token)


def given_back(message: dict[str, Any], rescued: Rescued, new_tag: Callable[[], str]) -> dict[str, Any]:
    """The message to requeue, flagged as redelivered in the way kombu does.

    It gets a new tag: a worker that was only stopped acknowledges the old tag when it continues, and that must not take
    the message from the worker that has it by then.
    """
    properties = message["properties"]
    delivery = {**(properties.get("delivery_info") or {}), "redelivered": True}
    return {
        **message,
        "headers": {**message["headers"], "redelivered": True, RESCUED: list(rescued)},
        "properties": {**properties, "delivery_info": delivery, "delivery_tag": new_tag()},
    }


def _eta(said: Any, zone: tzinfo) -> float | None:
    if not said:
        return None
    try:
        eta = said if isinstance(said, datetime) else datetime.fromisoformat(said.replace("Z", "+00:00"))
        return (eta if eta.tzinfo is not None else eta.replace(tzinfo=zone)).timestamp()
    except (AttributeError, TypeError, ValueError, OverflowError):
        return float("inf")


def _rescued(headers: Mapping[str, Any]) -> Rescued:
    said = headers.get(RESCUED)
    try:
        times, token = said or (0, 0)
        return Rescued(int(times), int(token))
    except (TypeError, ValueError):
        return Rescued(MOST_TIMES)
