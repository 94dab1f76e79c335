"""Celery looks for dead children of a prefork pool every 5 seconds; tests that kill one shall not wait that long."""

from __future__ import annotations

import os

from celery.concurrency.asynpool import AsynPool

ENVIRONMENT = {"TASKGUARD_TEST_HASTE": "1"}
"""For workers whose children are killed. Not for all: a pool that is being shut down is better left alone."""


def look_for_dead_children_often() -> None:
    if ENVIRONMENT.items() <= os.environ.items():
        AsynPool.timers = property(lambda pool: {pool.maintain_pool: 0.2})
