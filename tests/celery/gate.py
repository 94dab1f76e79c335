"""The test's side of the gates that task bodies wait at."""

from __future__ import annotations

from pathlib import Path

from tests.celery.bodies import gate_path


class Gate:
    """All gates of a test, by name; each is shut until it is opened."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self, name: str = "gate") -> None:
        gate_path(self._directory, name).touch()

    def shut(self, name: str = "gate") -> None:
        gate_path(self._directory, name).unlink(missing_ok=True)
