"""The test's side of a worker in a process of its own."""

from __future__ import annotations

from tests.told import ToldProcess


class RemoteWorker(ToldProcess):
    def __init__(self, url: str, namespace: str) -> None:
        super().__init__("tests.safety.worker", url, namespace)
        assert self.answer() == "ready"
