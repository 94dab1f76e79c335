"""The envelope of a job, as it stands in a field of its own of the job's hash: `noted.py`."""

from __future__ import annotations

import json

from taskguard.engine.envelope import WIRE_NAMES, Envelope

IDEMPOTENCY_KEY = "idempotency_key"
NAMESPACE = "namespace"
"""In the note of a slot: where its entry is, in the queue's own Redis."""

_FIELDS = [(name, WIRE_NAMES.get(name, name)) for name in Envelope._fields]


def read(text: bytes | str | None) -> Envelope:
    """What was written, by this version or another one."""
    if not text:
        return Envelope()
    facts = json.loads(text)
    return Envelope(**{name: facts[wire] for name, wire in _FIELDS if facts.get(wire)})


def written(envelope: Envelope) -> str:
    said = {wire: value for (_, wire), value in zip(_FIELDS, envelope, strict=True) if value}
    return json.dumps(said, separators=(",", ":"))
