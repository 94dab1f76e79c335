"""How an outcome is kept: as JSON, never as a pickle, and only if it is small."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

from taskguard.errors import OutcomeNotKeptError

if TYPE_CHECKING:
    from taskguard.protocol.store import Completed

MOST_BYTES = 64 * 1024


class NotKept(Exception):  # noqa: N818 - not an error of the job: the work is done, and only the fact is kept
    """The value cannot be kept; the message says why."""


class Outcomes(Protocol):
    """The serializer of results and failures. A queue integration brings its app's own."""

    def encode(self, value: Any) -> bytes:
        """The value as bytes; raises `NotKept` if that cannot be."""

    def decode(self, outcome: bytes) -> Any:
        """The value that was encoded."""

    def encode_error(self, error: BaseException) -> bytes:
        """The failure as bytes; raises `NotKept` if that cannot be."""

    def decode_error(self, outcome: bytes) -> str:
        """What the failure was, in words."""


class JsonOutcomes:
    """Plain JSON: a tuple comes back as a list, and what JSON cannot say is not kept."""

    def encode(self, value: Any) -> bytes:
        try:
            return small_enough(json.dumps(value, separators=(",", ":"), allow_nan=False).encode())
        except (TypeError, ValueError, RecursionError) as error:
            raise NotKept(f"it cannot be written as JSON ({error})") from error

    def decode(self, outcome: bytes) -> Any:
        return json.loads(outcome)

    def encode_error(self, error: BaseException) -> bytes:
        kind = type(error)
        return small_enough(json.dumps(f"{kind.__module__}.{kind.__qualname__}: {error}").encode())

    def decode_error(self, outcome: bytes) -> str:
        return str(json.loads(outcome))


def value_of(outcomes: Outcomes, done: Completed) -> Any:
    """What finished work has returned; `OutcomeNotKeptError` if that is not known."""
    is_over = done.how in ("succeeded", "failed")
    problem = "it was too large, or could not be written down" if is_over else f"it was {done.how}"
    try:
        if done.outcome is not None:
            return outcomes.decode(done.outcome)
    except NotKept as error:
        problem = str(error)
    raise OutcomeNotKeptError(done.key, done.owner, problem)


def small_enough(outcome: bytes) -> bytes:
    if len(outcome) > MOST_BYTES:
        raise NotKept(f"it takes {len(outcome)} bytes, more than the {MOST_BYTES} that are kept")
    return outcome
