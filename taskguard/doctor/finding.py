"""What a check takes and what it yields."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

from taskguard.history import MOST, Decision, decisions
from taskguard.protocol.store import Store

Level: TypeAlias = Literal["error", "warning"]

IDS: dict[str, str] = {
    "TG101": "the store evicts entries",
    "TG102": "the store forgets everything when it restarts",
    "TG103": "the store may forget its last writes when it restarts",
    "TG104": "a failover can lose acknowledged writes",
    "TG105": "the clocks of this host and the store differ",
    "TG106": "the store is in the memory of one process",
    "TG107": "guarding is switched off",
    "TG108": "the store is a file on one host",
    "TG109": "the store does not show its settings",
    "TG201": "the visibility timeout is shorter than a job",
    "TG202": "a job is lost, or late, if its worker dies",
    "TG203": "a queued entry can expire before its job starts",
    "TG204": "keep_for is shorter than a redelivery takes",
    "TG205": "there is no result backend",
    "TG206": "options that cannot work together",
    "TG207": "a pattern matches no task",
    "TG208": "scheduled jobs are not guarded",
    "TG209": "a delay is longer than the visibility timeout",
    "TG210": "a job runs longer than RabbitMQ waits for its acknowledgement",
    "TG211": "queued jobs have no message",
    "TG212": "the broker is unavailable",
    "TG301": "a key ignores an argument that varies",
    "TG302": "leases were lost",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem that the doctor found."""

    id: str
    level: Level
    about: str
    """What has the problem: the store, a setting, a task."""
    problem: str
    """What is wrong, and what follows from it."""
    advice: str
    """What to change."""

    @property
    def title(self) -> str:
        return IDS[self.id]


class Patient:
    """What the doctor examines: a store, and the Celery app that uses it if there is one."""

    def __init__(self, store: Store, app: Any = None) -> None:
        self.store = store
        self.app = app

    @cached_property
    def decisions(self) -> list[Decision]:
        """The recent decisions, oldest first."""
        return decisions(self.store, limit=2 * MOST)

    @cached_property
    def guarding(self) -> Any:
        from taskguard.celery.guarding import app_guard_of

        return app_guard_of(self.app)

    @cached_property
    def tasks(self) -> list[Any]:
        """The guarded tasks of the app."""
        self.app.loader.import_default_modules()
        self.app.finalize()
        found = [task for task in self.app.tasks.values() if getattr(task, "taskguard", None) is not None]
        return sorted(found, key=lambda task: str(task.name))
