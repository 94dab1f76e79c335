"""The message in hand: who may wait for it, and how it is published again as it came."""

from __future__ import annotations

import logging
import random
import time
from typing import Any, NoReturn

from celery import Celery
from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore, Reject
from kombu.exceptions import OperationalError

from taskguard.celery.call import AS_IS
from taskguard.celery.headers import SERIALIZER, Headers
from taskguard.celery.shown import TEXTS, keep_out_of_properties

FIRST_DELAY = 0.25
PAUSE_WITHOUT_BROKER = 1.0
"""A message that cannot be published again goes back to its queue at once: not in a hot loop."""

_logger = logging.getLogger("taskguard")


class PutBack(Ignore):  # type: ignore[misc]
    """This delivery ends, and the job does not: its message was published again, under the same id."""


class Skipped(Ignore):  # type: ignore[misc]
    """A scheduled job ends here: another one has the key, and nobody waits for it."""


def _shortest_delay(app: Celery) -> float:
    """Celery lets RabbitMQ itself delay what it sends beside quorum queues: by whole seconds, and it refuses less."""
    queues = list(app.amqp.queues.values())
    has_quorum = any((queue.queue_arguments or {}).get("x-queue-type") == "quorum" for queue in queues)
    return 1.0 if has_quorum and any(queue.exchange.type != "direct" for queue in queues) else 0.0


class Message:
    def __init__(self, task: Any, request: Any) -> None:
        self._task = task
        self.request = request
        self.id = str(self.request.id)
        self.headers = Headers.of(self.request.headers, self.id)

    @property
    def ignores_result(self) -> bool:
        return self.says_ignore or isinstance(self._task.backend, DisabledBackend)

    @property
    def says_ignore(self) -> bool:
        # The class of a request says False: only what the call itself said counts.
        said = vars(self.request).get("ignore_result")
        return bool(self._task.ignore_result if said is None else said)

    @property
    def is_linked(self) -> bool:
        """Whether something goes on when this job has ended."""
        request = self.request
        return bool(request.callbacks or request.errbacks or request.chain or request.chord)

    @property
    def is_awaited(self) -> bool:
        """Whether somebody may wait for the result under this very id."""
        return self.is_linked or bool(self.request.group) or not self.ignores_result

    def put_back(self, why: str, *, longest: float, within: float = float("inf")) -> NoReturn:
        """Publish it again, with a delay, and leave the one in hand to be acknowledged.

        The delay grows from round to round up to *longest*, and is not longer than *within*, when there may be news.
        """
        self.publish_again(longest=longest, within=within)
        raise PutBack(f"put back: {why}")

    def publish_again(self, *, longest: float, within: float = float("inf")) -> None:
        self.headers = self.headers.with_(id=self.id, rounds=self.headers.rounds + 1)
        delay = min(longest, within + FIRST_DELAY, FIRST_DELAY * 2 ** min(self.headers.rounds - 1, 10))
        delay *= random.uniform(0.6, 1.0)
        # A job that has ended cannot expire any more, but whoever waits for it still can be told.
        more = {"expires": None} if self.headers.unanswered else {}
        self._publish(self.headers, countdown=max(delay, _shortest_delay(self._task.app)), **more)

    def publish_for(self, owner: str, headers: Headers) -> None:
        """The same work under another job's id."""
        alone = {"link": None, "link_error": None, "chain": None, "chord": None, "group_id": None, "group_index": None}
        self._publish(headers.with_(id=owner), task_id=owner, retries=0, **alone)

    def _publish(self, headers: Headers, **options: Any) -> None:
        request = self.request
        ignores = vars(request).get("ignore_result")
        options = {"retries": request.retries, "ignore_result": ignores, **self._texts(), **options}
        serializer = getattr(request, SERIALIZER, None)
        if serializer:
            options["serializer"] = serializer
        signature = self._task.signature_from_request(request, **options)
        signature.options["headers"] = headers.within(signature.options.get("headers"))
        signature.options[AS_IS] = True
        try:
            signature.apply_async()
        except OperationalError as error:
            self.give_back(error)

    def _texts(self) -> dict[str, str]:
        """What the message shows of its arguments: its caller may have hidden some."""
        shown = {name: text for name in TEXTS if (text := vars(self.request).get(name)) is not None}
        if shown:
            keep_out_of_properties(self._task.name)
        return shown

    def give_back(self, error: Exception) -> NoReturn:
        """The broker does not take another message now: it keeps the one it has."""
        _logger.error("%s[%s] cannot be published again: %s", self._task.name, self.id, error)
        if not self._task.acks_late:
            raise error  # it has none any more: the job fails, visibly
        time.sleep(PAUSE_WITHOUT_BROKER)
        raise Reject(error, requeue=True) from error
