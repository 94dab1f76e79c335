"""A broker, a result backend, and any number of workers."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias
from unittest.mock import patch
from uuid import uuid4

from celery import Celery

from tests import forkserver
from tests.bodies import DIRECTORY
from tests.celery.settings import ENVIRONMENT, Backend, Broker, settings, sql_url
from tests.celery.worker import Worker
from tests.servers import RabbitMQServer, RedisServer

ROOT = Path(__file__).parents[2]
TASKS = "tests.celery.tasks"
QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")
"""What makes a worker start later, and has nothing to do with how it runs tasks."""


class Fleet:
    """Its *redis* is the test's own, and may be hurt: it serves as broker, as result backend and as the guard's store.

    Each of these has a database of its own there.
    """

    def __init__(
        self,
        docker: Any,
        redis: RedisServer,
        rabbitmq: RabbitMQServer | None,
        directory: Path,
        *,
        broker: Broker,
        backend: Backend,
        conf: Mapping[str, Any],
    ) -> None:
        self.redis = redis
        self.rabbitmq = rabbitmq
        self.queue = f"queue-{uuid4().hex[:8]}"
        self.workers: list[Worker] = []
        self._docker = docker
        self._directory = directory
        self._queues = {self.queue}
        self._environment = {
            DIRECTORY: str(directory),
            ENVIRONMENT: json.dumps(
                settings(
                    broker=broker,
                    broker_url=rabbitmq.url if rabbitmq else self.database(0),
                    backend=backend,
                    backend_url={"sql": sql_url(directory), "rpc": "rpc://"}.get(backend or "", self.database(1)),
                    queue=self.queue,
                    more={"taskguard_store": self.database(2), **conf},
                )
            ),
        }
        self.tasks: ModuleType = self._load_tasks()
        self.app: Celery = self.tasks.app

    def database(self, number: int) -> str:
        return f"{self.redis.url.rpartition('/')[0]}/{number}"

    def start_worker(
        self,
        pool: str = "prefork",
        concurrency: int = 2,
        queue: str | None = None,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        wait: bool = True,
    ) -> Worker:
        """A worker that is ready, or with *wait* False one that is about to be: `worker.wait_until_ready()`."""
        queue = queue or self.queue
        self._queues.add(queue)
        name = f"worker{len(self.workers)}@{self.queue}"
        command = ["python", "-m", "celery", "-A", TASKS, "worker", "-n", name, "-Q", queue, "-P", pool]
        container = self._docker.containers.run(
            image="taskguard-tests",
            command=[*command, "-c", str(concurrency), "-l", "INFO", *QUIET, *options],
            environment={**self._environment, **(environment or {})},
            working_dir=str(ROOT),
            volumes={str(path): {"bind": str(path)} for path in (ROOT, self._directory)},
            network_mode="host",
            detach=True,
        )
        worker = Worker(container, self.app, name, queue)
        self.workers.append(worker)
        if wait:
            worker.wait_until_ready()
        return worker

    def publish_at_once(self, publishers: int, *, calls: int, keys: int) -> list[str]:
        """The ids that each of so many processes got for so many calls; see `publisher.py`."""
        files = [self._directory / f"publisher{number}" for number in range(publishers)]
        started = [
            forkserver.start(
                [sys.executable, "-m", "tests.celery.publisher", *map(str, (number, publishers, calls, keys, file))],
                log=file.with_suffix(".log"),
                directory=ROOT,
                environment=self._environment,
            )
            for number, file in enumerate(files)
        ]
        for publisher, file in zip(started, files, strict=True):
            assert publisher.wait(300) == 0, file.with_suffix(".log").read_text()
        return [task_id for file in files for task_id in file.read_text().split()]

    def close(self) -> None:
        while self.workers:
            self.workers.pop().teardown()
        self._delete_queues()
        # A result that is collected later would tell its backend, and wait for a server that is gone by then.
        self.app.backend.remove_pending_result = lambda result: result
        self.app.close()

    def _load_tasks(self) -> ModuleType:
        # Anew for each fleet: an application keeps connections, and everything it once read from its settings.
        sys.modules.pop(TASKS, None)
        with patch.dict(os.environ, self._environment):
            return importlib.import_module(TASKS)

    def _delete_queues(self) -> None:
        # The test's Redis is gone with the test; RabbitMQ stays.
        if self.rabbitmq is None or not self.rabbitmq.running:
            return
        with closing(self.app.connection_for_write()) as connection, suppress(connection.connection_errors):
            for queue in self._queues:
                connection.default_channel.queue_delete(queue)


MakeFleet: TypeAlias = Callable[..., Fleet]
"""`make_fleet(broker="redis", backend="redis", conf={})`."""
