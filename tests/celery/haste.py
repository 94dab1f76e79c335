"""Celery looks for dead children of a prefork pool every 5 seconds; tests that kill one shall not wait that long."""

from __future__ import annotations

from celery.concurrency.asynpool import AsynPool


def look_for_dead_children_often() -> None:
    AsynPool.timers = property(lambda pool: {pool.maintain_pool: 0.2})
