"""The envelope of a job, as it stands in a field of its own of the job's hash: `noted.py`."""

from __future__ import annotations

import json

from taskguard.engine.envelope import Envelope

IDEMPOTENCY_KEY = "idempotency_key"
NAMESPACE = "namespace"
"""In the note of a slot: where its entry is, in the queue's own Redis."""


def read(text: bytes | str | None) -> Envelope:
    return Envelope.heard(json.loads(text)) if text else Envelope()


def written(envelope: Envelope) -> str:
    return json.dumps(envelope.said(), separators=(",", ":"))
