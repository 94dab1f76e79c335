"""The envelope of a job as JSON, in its own field of the job's hash: see `guarded_job.py`."""

from __future__ import annotations

import json

from taskguard.engine.envelope import WIRE_NAMES, Envelope

IDEMPOTENCY_KEY = "idempotency_key"
NAMESPACE = "namespace"
"""In a slot of the envelope: the namespace of its entry in the queue's own Redis."""

_FIELDS = [(name, WIRE_NAMES.get(name, name)) for name in Envelope._fields]


def read(text: bytes | str | None) -> Envelope:
    """Read an envelope that this or another version wrote."""
    if not text:
        return Envelope()
    facts = json.loads(text)
    return Envelope(**{name: facts[wire] for name, wire in _FIELDS if facts.get(wire)})


def written(envelope: Envelope) -> str:
    said = {wire: value for (_, wire), value in zip(_FIELDS, envelope, strict=True) if value}
    return json.dumps(said, separators=(",", ":"))
