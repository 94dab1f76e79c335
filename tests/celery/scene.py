"""A fleet at work, as a test speaks of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tests.scene
from tests.celery.fleet import Fleet


class Scene(tests.scene.Scene):
    def __init__(self, fleet: Fleet, directory: Path) -> None:
        super().__init__(directory)
        self.fleet = fleet

    def job(self, name: str) -> Any:
        return self.fleet.tasks.jobs[name]

    def call(self, name: str = "job", then: str = "return", *, key: str = "", **options: Any) -> Any:
        """Call a job of this test's key. Options that the body does not know are those of `apply_async`."""
        arguments = {word: options.pop(word) for word in ("gate", "value") if word in options}
        return self.job(name).apply_async((key or self.key, then), arguments, **options)

    def entry(self, name: str = "job", *, key: str = "") -> Any:
        return self.job(name).taskguard.get(key or self.key)

    def result(self, call: Any) -> Any:
        return call.get(timeout=20)
