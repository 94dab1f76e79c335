"""Classes of jobs that a project may have of its own."""

from __future__ import annotations

from typing import Any

from rq.job import Job

from tests.rq import bodies


class TracedJob(Job):
    """As what watches over performance does it: around each job."""

    def perform(self) -> Any:
        bodies.note("traced")
        return super().perform()


class SlottedJob(Job):
    __slots__ = ("mine",)
