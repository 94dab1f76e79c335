"""How an outcome is stored: as JSON if that is exact, else in the queue's own serializer.

RQ stores results in the queue's serializer, pickle by default. An outcome that JSON would change (a tuple, a date) is
stored the same way. The format is that of the Celery integration: if both queues share keys, a job of one can end with
the outcome of the other.
"""

from __future__ import annotations

import json
from typing import Any

from rq.serializers import DefaultSerializer

from taskguard.protocol.outcomes import NotKept, small_enough

_JSON = b"application/json\nutf-8\n"
_PICKLE = b"application/x-python-serialize\nbinary\n"
_OTHER = b"application/x-rq\nbinary\n"


class QueueOutcomes:
    def __init__(self, serializer: Any) -> None:
        self._serializer = serializer
        self._kind = _PICKLE if serializer is DefaultSerializer else _OTHER

    def encode(self, value: Any) -> bytes:
        if value is None:
            return _JSON + b"null"  # what most jobs return
        if _is_plain(value):
            return small_enough(_JSON + json.dumps(value, separators=(",", ":")).encode())
        try:
            return small_enough(self._kind + self._serializer.dumps(value))
        except NotKept:
            raise
        except Exception as error:  # a serializer may raise anything
            raise NotKept(f"the queue's serializer cannot serialize it ({error})") from error

    def decode(self, outcome: bytes) -> Any:
        if outcome.startswith(_JSON):
            return json.loads(outcome[len(_JSON) :])
        if outcome.startswith(self._kind):
            return self._serializer.loads(outcome[len(self._kind) :])
        raise NotKept("it was stored by another serializer than this queue's")

    def encode_error(self, error: BaseException) -> bytes:
        kind = type(error)
        facts = {"exc_type": kind.__name__, "exc_message": [str(error)], "exc_module": kind.__module__}
        return small_enough(_JSON + json.dumps(facts).encode())

    def decode_error(self, outcome: bytes) -> str:
        facts = self.decode(outcome)
        message = facts["exc_message"]
        words = " ".join(map(str, message)) if isinstance(message, (list, tuple)) else str(message)
        return f"{facts.get('exc_module') or 'builtins'}.{facts['exc_type']}: {words}"


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether a round trip through JSON returns an equal value of the same type."""
    kind = type(value)
    if kind is float:
        return value == value and value not in (float("inf"), float("-inf"))
    if value is None or kind in (str, int, bool):
        return True
    if depth > 50:
        return False
    if kind is list:
        return all(_is_plain(item, depth + 1) for item in value)
    return kind is dict and all(type(key) is str and _is_plain(item, depth + 1) for key, item in value.items())
