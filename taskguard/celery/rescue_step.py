"""The bootstep that rescues messages while the worker consumes."""

from __future__ import annotations

import logging
import os
import socket
import sys
from typing import Any

from celery import bootsteps

from taskguard.celery.guarding import app_guard_of
from taskguard.celery.internals import RESCUE, require_names
from taskguard.celery.recurring import Recurring
from taskguard.celery.rescue import EVERY, Rescuer
from taskguard.celery.unacked import TIMEOUT, Unacked

FIRST = EVERY / 2
"""Seconds from the worker's start to the first tick: it is busy then, and no message counts as silent so early."""

_logger = logging.getLogger("taskguard")


class RescueStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Celery starts it again with each connection to the broker."""

    name = "taskguard-rescue"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._ticks: Ticks | None = None

    def include_if(self, consumer: Any) -> bool:
        return app_guard_of(consumer.app).settings.redeliver_orphans

    def start(self, consumer: Any) -> None:
        if is_redis(consumer.connection.transport):
            require_names(RESCUE)
            self._ticks = Ticks(consumer)
            self._ticks.start()

    def stop(self, consumer: Any) -> None:
        ticks, self._ticks = self._ticks, None
        if ticks is not None:
            ticks.stop()


def is_redis(transport: Any) -> bool:
    """Whether it is kombu's Redis transport, or one made of it, as Sentinel's."""
    theirs = sys.modules.get("kombu.transport.redis")  # which kombu imports when it is used
    return theirs is not None and isinstance(transport, theirs.Transport)


class Ticks(Recurring):
    """Calls the rescuer every other second, and keeps the connection that it uses."""

    name = "taskguard-rescue"
    first = FIRST

    def __init__(self, consumer: Any) -> None:
        super().__init__(consumer)
        self._connection: Any = None
        self._rescuer = Rescuer(consumer.app, self._in_hand, self._connect)
        self._is_in_trouble = False

    def tick(self) -> float:
        try:
            seconds = self._rescuer.tick()
        except (
            Exception
        ) as error:  # an error of the broker or the store must not stop the worker; the next tick tries again
            if not self._is_in_trouble:
                _logger.warning("could not search for messages of dead workers; will try again: %r", error)
            self._is_in_trouble = True
            return EVERY
        self._is_in_trouble = False
        return seconds

    # -- what it works on ------------------------------------------------------------------------------------------

    def _in_hand(self) -> dict[str, Any] | None:
        """The messages that this worker has fetched and not acknowledged; None if it consumes no more."""
        consumer = self.consumer.task_consumer
        if consumer is None or consumer.channel is None:
            return None
        qos = consumer.channel.qos
        while True:
            try:
                delivered = dict(qos._delivered)
                break
            except RuntimeError:
                continue  # another thread has just fetched one
        for tag in list(qos._dirty):  # acknowledged
            delivered.pop(tag, None)
        return delivered

    def _connect(self, store: str) -> Unacked:
        self.close()
        broker = self.consumer.connection
        # A connection of its own, as replies are awaited only so long: kombu's own may be configured to wait for ever.
        # And one try only: kombu would wait between two, and the worker with it.
        tries = {"max_retries": 1, "interval_start": 0}
        options = {**broker.transport_options, "socket_timeout": TIMEOUT, "socket_connect_timeout": TIMEOUT, **tries}
        self._connection = broker.clone(transport_options=options)
        self._connection.transport.state = broker.transport.state  # it knows the types of exchanges
        worker = f"{socket.gethostname()}:{os.getpid()}:{id(self):x}"
        return Unacked(self._connection.default_channel, store, worker)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.release()
            self._connection = None
