"""The bootstep that rescues messages while the worker consumes."""

from __future__ import annotations

import logging
import os
import socket
import threading
from typing import Any

from celery import bootsteps
from celery.concurrency import solo, thread

from taskguard.celery.guarding import app_guard_of
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
            self._ticks = Ticks(consumer)
            self._ticks.start()

    def stop(self, consumer: Any) -> None:
        ticks, self._ticks = self._ticks, None
        if ticks is not None:
            ticks.stop()


def is_redis(transport: Any) -> bool:
    """Whether it is kombu's transport for Redis or Sentinel, and keeps unacknowledged messages."""
    return transport.driver_type == "redis" and all(
        hasattr(transport.Channel, name) for name in ("unacked_key", "unacked_index_key", "async_pool")
    )


class Ticks:
    """Calls the rescuer every other second, and keeps the connection that it uses."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._connection: Any = None
        self._rescuer = Rescuer(consumer.app, self._in_hand, self._connect)
        self._timer: Any = None
        self._stopped = threading.Event()
        self._is_in_trouble = False

    def start(self) -> None:
        pool = self._consumer.pool
        if isinstance(pool, (solo.TaskPool, thread.TaskPool)) or getattr(pool, "is_green", False):
            # A body may keep the main thread busy, and no process is forked here.
            threading.Thread(target=self._run, name="taskguard-rescue", daemon=True).start()
        else:
            self._call_after(FIRST)  # not in a thread: see `parent_timer.py`

    def stop(self) -> None:
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()
            self._close()

    def _run(self) -> None:
        seconds = FIRST
        while not self._stopped.wait(seconds):
            seconds = self._tick()
        self._close()

    def _call_after(self, seconds: float) -> None:
        self._timer = self._consumer.timer.call_after(seconds, self._tick_and_go_on)

    def _tick_and_go_on(self) -> None:
        if not self._stopped.is_set():
            self._call_after(self._tick())

    def _tick(self) -> float:
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
        """The messages that this worker fetched and has not acknowledged; None if it no longer consumes."""
        consumer = self._consumer.task_consumer
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
        self._close()
        broker = self._consumer.connection
        # Its own connection, with a timeout for replies: kombu's may be configured to wait for ever.
        options = {**broker.transport_options, "socket_timeout": TIMEOUT, "socket_connect_timeout": TIMEOUT}
        self._connection = broker.clone(transport_options=options)
        self._connection.transport.state = broker.transport.state  # it knows the types of exchanges
        worker = f"{socket.gethostname()}:{os.getpid()}:{id(self):x}"
        return Unacked(self._connection.default_channel, store, worker)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.release()
            self._connection = None
