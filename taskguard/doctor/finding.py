"""What a check is given and what it answers."""

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
    "TG103": "the store may forget the last moments when it restarts",
    "TG104": "a fail-over can lose what was acknowledged",
    "TG105": "the clocks of this host and of the store differ",
    "TG106": "the store is this process's own",
    "TG107": "guarding is switched off",
    "TG108": "the store is a file of one host",
    "TG109": "the store does not tell how it is set up",
    "TG201": "the visibility timeout is shorter than a job",
    "TG202": "a job that dies with its worker is not delivered again",
    "TG203": "a queued entry can be over before its job starts",
    "TG204": "an end is forgotten before its message can come back",
    "TG205": "there is no result backend",
    "TG206": "options that cannot work together",
    "TG207": "a pattern fits no task",
    "TG208": "scheduled jobs are not guarded",
    "TG209": "a delay is longer than the visibility timeout",
    "TG210": "RabbitMQ does not wait so long for an acknowledgement",
    "TG211": "queued jobs have no message",
    "TG212": "the broker cannot be asked",
    "TG301": "a key ignores an argument that varies",
    "TG302": "leases were lost",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    id: str
    level: Level
    about: str
    """What it was found at: the store, a setting, a task."""
    problem: str
    """What is so, and what follows from it."""
    advice: str
    """What to change."""

    @property
    def title(self) -> str:
        return IDS[self.id]


class Patient:
    """What is examined: a store, and perhaps the Celery app that uses it."""

    def __init__(self, store: Store, app: Any = None) -> None:
        self.store = store
        self.app = app

    @cached_property
    def decisions(self) -> list[Decision]:
        """What was decided of late, the oldest first."""
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
