"""The message of a delivery: who may wait for it, and how to republish it unchanged."""

from __future__ import annotations

import logging
import random
import time
from typing import Any, NamedTuple, NoReturn

from celery import Celery
from celery.backends.base import DisabledBackend
from celery.exceptions import Reject
from kombu.exceptions import OperationalError

from taskguard.celery.headers import AS_IS, SERIALIZER, with_envelope
from taskguard.celery.message_repr import TEXTS, keep_out_of_properties
from taskguard.engine.envelope import Envelope

FIRST_DELAY = 0.25
PAUSE_WITHOUT_BROKER = 1.0
"""Seconds to wait before a message that could not be republished is requeued: this avoids a hot loop."""

_logger = logging.getLogger("taskguard")


def _shortest_delay(app: Celery) -> float:
    """With quorum queues Celery lets RabbitMQ delay messages: by whole seconds, and at least one."""
    queues = list(app.amqp.queues.values())
    has_quorum = any((queue.queue_arguments or {}).get("x-queue-type") == "quorum" for queue in queues)
    return 1.0 if has_quorum and any(queue.exchange.type != "direct" for queue in queues) else 0.0


class Message(NamedTuple):
    task: Any
    request: Any
    id: str

    @property
    def ignores_result(self) -> bool:
        return self.says_ignore or isinstance(self.task.backend, DisabledBackend)

    @property
    def says_ignore(self) -> bool:
        # The request class defaults to False: only the call's own value counts.
        said = vars(self.request).get("ignore_result")
        return bool(self.task.ignore_result if said is None else said)

    @property
    def is_linked(self) -> bool:
        """Whether callbacks, a chain or a chord continue after this job."""
        request = self.request
        return bool(request.callbacks or request.errbacks or request.chain or request.chord)

    @property
    def is_awaited(self) -> bool:
        """Whether someone may wait for the result under this id."""
        return self.is_linked or bool(self.request.group) or not self.ignores_result

    def publish_again(self, envelope: Envelope, *, longest: float, within: float = float("inf")) -> None:
        """Republish it with a delay that grows each round up to *longest*, but ends soon after *within* seconds."""
        envelope = envelope._replace(id=self.id)
        delay = min(longest, within + FIRST_DELAY, FIRST_DELAY * 2 ** min(envelope.rounds - 1, 10))
        delay *= random.uniform(0.6, 1.0)
        # A job that has ended cannot expire any more, but its callbacks can still be sent.
        more = {"expires": None} if envelope.unanswered else {}
        self._publish(envelope, countdown=max(delay, _shortest_delay(self.task.app)), **more)

    def publish_for(self, owner: str, envelope: Envelope) -> None:
        """Publish the same work under another job's id."""
        alone = {"link": None, "link_error": None, "chain": None, "chord": None, "group_id": None, "group_index": None}
        self._publish(envelope._replace(id=owner), task_id=owner, retries=0, **alone)

    def _publish(self, envelope: Envelope, **options: Any) -> None:
        request = self.request
        ignores = vars(request).get("ignore_result")
        options = {"retries": request.retries, "ignore_result": ignores, **self._texts(), **options}
        serializer = getattr(request, SERIALIZER, None)
        if serializer:
            options["serializer"] = serializer
        signature = self.task.signature_from_request(request, **options)
        signature.options["headers"] = with_envelope(signature.options.get("headers"), envelope)
        signature.options[AS_IS] = True
        try:
            signature.apply_async()
        except OperationalError as error:
            self.give_back(error)

    def _texts(self) -> dict[str, str]:
        """The `argsrepr` and `kwargsrepr` of the message: its caller may have hidden arguments."""
        shown = {name: text for name in TEXTS if (text := vars(self.request).get(name)) is not None}
        if shown:
            keep_out_of_properties(self.task.name)
        return shown

    def give_back(self, error: Exception) -> NoReturn:
        """The broker does not accept another message now: requeue the one it has."""
        _logger.error("%s[%s] could not be republished: %s", self.task.name, self.id, error)
        if not self.task.acks_late:
            raise error  # the message was acknowledged early: the job fails visibly
        time.sleep(PAUSE_WITHOUT_BROKER)
        raise Reject(error, requeue=True) from error
