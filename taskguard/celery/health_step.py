"""The part of a worker that says that it is alive, in the file that a probe reads."""

from __future__ import annotations

from typing import Any

from celery import bootsteps
from celery.worker import state

from taskguard.celery.guarding import app_guard_of
from taskguard.celery.internals import HEALTH, require_names
from taskguard.celery.recurring import Recurring
from taskguard.runtime.health_file import HealthFile

EVERY = 5.0


class HealthStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Started anew with each connection to the broker; in between nobody writes, and the file grows old."""

    name = "taskguard-health"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._file = HealthFile.of("worker", app_guard_of(consumer.app).settings.health_file)
        self._pulse: Pulse | None = None

    def include_if(self, consumer: Any) -> bool:
        return self._file is not None

    def start(self, consumer: Any) -> None:
        if self._file is not None:
            require_names(HEALTH)
            self._pulse = Pulse(consumer, self._file)
            self._pulse.start()

    def stop(self, consumer: Any) -> None:
        pulse, self._pulse = self._pulse, None
        if pulse is not None:
            pulse.stop()


class Pulse(Recurring):
    """Of a prefork worker it is its event loop that turns; of the others, a thread of a process that lives."""

    name = "taskguard-health"

    def __init__(self, consumer: Any, file: HealthFile) -> None:
        super().__init__(consumer)
        self._file = file
        self._consumes = True

    def tick(self) -> float:
        self._file.write(self._facts, now=True)
        return EVERY

    def close(self) -> None:
        self._consumes = False
        self._file.write(self._facts, now=True)

    def _facts(self) -> dict[str, Any]:
        return {"name": self.consumer.hostname, "consumes": self._consumes, "active": len(state.active_requests)}
