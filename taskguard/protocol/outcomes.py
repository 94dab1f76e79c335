"""How an outcome is stored: as JSON, never as a pickle, and only if it is small."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

from taskguard.errors import OutcomeNotKeptError

if TYPE_CHECKING:
    from taskguard.protocol.store import Completed

MOST_BYTES = 64 * 1024


class NotKept(Exception):  # noqa: N818 - not an error of the job: the work is done, and only completion is recorded
    """The value cannot be stored; the message says why."""


class Outcomes(Protocol):
    """The serializer of results and failures. A queue integration passes its app's own."""

    def encode(self, value: Any) -> bytes:
        """The value as bytes; raises `NotKept` if it cannot be stored."""

    def decode(self, outcome: bytes) -> Any:
        """The value that was encoded."""

    def encode_error(self, error: BaseException) -> bytes:
        """The failure as bytes; raises `NotKept` if it cannot be stored."""

    def decode_error(self, outcome: bytes) -> str:
        """The failure as text."""


class JsonOutcomes:
    """Plain JSON: a tuple comes back as a list, and a value that JSON cannot represent is not stored."""

    def encode(self, value: Any) -> bytes:
        try:
            return small_enough(json.dumps(value, separators=(",", ":"), allow_nan=False).encode())
        except (TypeError, ValueError, RecursionError) as error:
            raise NotKept(f"JSON cannot represent it ({error})") from error

    def decode(self, outcome: bytes) -> Any:
        return json.loads(outcome)

    def encode_error(self, error: BaseException) -> bytes:
        kind = type(error)
        return small_enough(json.dumps(f"{kind.__module__}.{kind.__qualname__}: {error}").encode())

    def decode_error(self, outcome: bytes) -> str:
        return str(json.loads(outcome))


def value_of(outcomes: Outcomes, done: Completed) -> Any:
    """The result of finished work; raises `OutcomeNotKeptError` if it was not stored."""
    is_over = done.how in ("succeeded", "failed")
    problem = "it was too large, or could not be serialized" if is_over else f"the job was {done.how}"
    try:
        if done.outcome is not None:
            return outcomes.decode(done.outcome)
    except NotKept as error:
        problem = str(error)
    raise OutcomeNotKeptError(done.key, done.owner, problem)


def small_enough(outcome: bytes) -> bytes:
    if len(outcome) > MOST_BYTES:
        raise NotKept(f"it takes {len(outcome)} bytes, more than the limit of {MOST_BYTES}")
    return outcome
