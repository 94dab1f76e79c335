"""Workers as their broker sees them: each fetches, acknowledges, stamps and looks when the test says so."""

from __future__ import annotations

import time
from typing import Any

import redis
from celery import Celery

from taskguard.celery import singleton_task
from taskguard.celery.guarding import app_guard_of
from taskguard.celery.rescue import Rescuer
from taskguard.celery.unacked import Unacked
from taskguard.protocol.store import Claim, Claimant, Ending

QUICK = {
    "taskguard.celery.rescue.EVERY": 0.1,
    "taskguard.celery.rescue.WATCHED": 0.15,
    "taskguard.celery.unacked.SUSPECT": 0.1,
    "taskguard.celery.unacked.LOOKS_FOR": 0.3,
    "taskguard.celery.orphans.SILENCE": 0.3,
}
"""What is awaited is under test, and not how long."""
LEASE = 0.4


class Broker:
    """An app with one guarded task and one that is not, and what its broker has."""

    def __init__(self, url: str, **conf: Any) -> None:
        self.url = url
        self.app = Celery("hands", broker=url, set_as_current=False)
        self.app.conf.update(task_ignore_result=True, task_default_queue="q", **conf)

        @singleton_task(self.app, name="charge", shared=False, key="order", lease=LEASE, keep_for=7200)
        def charge(order: Any) -> Any:
            return order

        @self.app.task(name="plain", shared=False)
        def plain(order: Any) -> Any:
            return order

        self.charge, self.plain = charge, plain
        self.connections: list[Any] = []
        self.client = self.channel().client
        self.store = app_guard_of(self.app).guard.store

    def channel(self) -> Any:
        connection = self.app.connection_for_read()
        self.connections.append(connection)
        self.app.amqp.queues["q"](connection.default_channel).declare()
        return connection.default_channel

    def close(self) -> None:
        for connection in self.connections:
            for channel in connection.transport.channels:
                channel.qos._delivered.clear()  # a killed worker restores nothing
            connection.release()
        self.app.close()

    @property
    def options(self) -> dict[str, Any]:
        return self.app.conf.broker_transport_options or {}

    def keys(self, name: str) -> str:
        return f"{self.options.get('global_keyprefix', '')}{self.options.get(name, name.removesuffix('_key'))}"

    @property
    def unacked(self) -> set[str]:
        return {tag.decode() for tag in self.raw.hkeys(self.keys("unacked_key"))}

    @property
    def raw(self) -> Any:
        """A client that knows of no prefix."""
        return redis.Redis(connection_pool=self.client.connection_pool)

    def waiting(self, queue: str = "q") -> int:
        return int(self.raw.llen(f"{self.options.get('global_keyprefix', '')}{queue}"))

    # -- what the store knows ----------------------------------------------------------------------------------------

    def begin(self, job: Any, order: Any, lease: float = 60.0) -> Any:
        key = self.charge.taskguard.key(order)
        return self.store.claim(Claim(key, job.id, f"attempt {time.monotonic()}", lease=lease, keep_for=60.0))

    def end(self, lease: Claimant) -> None:
        assert self.store.complete(lease, Ending(how="succeeded", keep_for=60.0))


class Hands:
    """One worker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.channel = broker.channel()
        self.rescuer = Rescuer(broker.app, self.in_hand, self._connect)

    def fetch(self) -> Any:
        message = self.channel.basic_get("q")
        assert message is not None
        return message

    def in_hand(self) -> dict[str, Any]:
        qos = self.channel.qos
        return {tag: message for tag, message in qos._delivered.items() if tag not in qos._dirty}

    def tick(self) -> float:
        return self.rescuer.tick()

    def _connect(self, store: str) -> Unacked:
        return Unacked(self.broker.channel(), store, f"worker {id(self):x}")


def tick_for(seconds: float, *workers: Hands) -> None:
    """These workers live for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for worker in workers:
            worker.tick()
        time.sleep(0.02)
