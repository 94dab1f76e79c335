"""Outcomes in the app's own result serializer: never a pickle unless the app uses it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import proxy

from celery import Celery
from kombu.exceptions import ContentDisallowed, DecodeError, EncodeError
from kombu.serialization import dumps, loads

from taskguard.protocol.outcomes import NotKept, small_enough
from taskguard.protocol.store import Claimant

if TYPE_CHECKING:
    from taskguard.celery.delivery import CeleryDelivery

KEPT_OF_THE_IGNORED = 1024
"""Bytes: a result that the app ignores is kept up to this size, since a duplicate in a chain may need it."""


class CannotBeWritten(NotKept):
    """Celery cannot serialize it either."""


class AppOutcomes:
    """What a guard needs of an app's result backend."""

    def __init__(self, app: Celery) -> None:
        self._app = proxy(app)  # the guard's threads hold this object, and must not keep the app alive

    def encode(self, value: Any) -> bytes:
        return self._nothing if value is None else self._encode(value)

    @cached_property
    def _nothing(self) -> bytes:
        """What most tasks return."""
        return self._encode(None)

    def _encode(self, value: Any) -> bytes:
        try:
            ready = self._app.backend.prepare_value(value)
            content_type, encoding, payload = dumps(ready, serializer=self._serializer)
        except (EncodeError, TypeError, ValueError) as error:
            raise CannotBeWritten(f"the result serializer {self._serializer} cannot serialize it ({error})") from error
        body = payload.encode() if isinstance(payload, str) else payload
        return small_enough(f"{content_type}\n{encoding}\n".encode() + body)

    def decode(self, outcome: bytes) -> Any:
        """Raises `NotKept` if the app does not accept the serializer: if keys are shared, RQ may have stored it."""
        content_type, encoding, payload = outcome.split(b"\n", 2)
        try:
            return loads(payload, content_type.decode(), encoding.decode(), accept=self._app.backend.accept)
        except (ContentDisallowed, DecodeError) as error:
            raise NotKept(f"it was stored in a format that this app does not accept ({error})") from error

    def encode_error(self, error: BaseException) -> bytes:
        return self.encode(self._app.backend.prepare_exception(error, self._serializer))

    def decode_error(self, outcome: bytes) -> str:
        return repr(self.exception(outcome))

    def exception(self, outcome: bytes) -> BaseException:
        """The failure, as Celery would raise it from `result.get()`."""
        error: BaseException = self._app.backend.exception_to_python(self.decode(outcome))
        return error

    @cached_property
    def _serializer(self) -> str:
        return str(self._app.conf.result_serializer)


def outcome_of(delivery: CeleryDelivery, value: Any) -> bytes | None:
    """What to keep of the result. If Celery cannot store it, the job fails, as without a guard."""
    try:
        outcome = delivery.app_guard.outcomes.encode(value)
    except NotKept as why:
        has_its_own = getattr(delivery.task, "_backend", None) is not None  # which may be able to store it
        is_celerys = isinstance(why, CannotBeWritten) and why.__cause__ is not None
        if is_celerys and not (delivery.message.ignores_result or delivery.request.is_eager or has_its_own):
            raise why.__cause__ from None  # type: ignore[misc]
        delivery.guard.report(
            "not_kept", Claimant(delivery.envelope.key, delivery.id, delivery.attempt), detail=str(why)
        )
        return None
    if len(outcome) <= KEPT_OF_THE_IGNORED or delivery.guarded is None or delivery.guarded.policy.on_done != "rerun":
        return outcome
    return None if delivery.message.says_ignore and not delivery.message.is_linked else outcome
