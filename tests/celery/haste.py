"""Workers in haste: what they wait for is under test, and not how long."""

from __future__ import annotations

import os

from celery.concurrency.asynpool import AsynPool

from taskguard import Guard

ENVIRONMENT = {"TASKGUARD_TEST_HASTE": "1"}
"""For workers whose children are killed: Celery looks for dead ones every 5 seconds.

Not for all: a pool that is being shut down is better left alone.
"""
PATIENCE = 2
IMPATIENT = {"TASKGUARD_TEST_PATIENCE": str(PATIENCE)}
"""For workers whose store goes away: a guard asks it for 10 seconds before that is an error."""


def make_haste() -> None:
    if ENVIRONMENT.items() <= os.environ.items():
        AsynPool.timers = property(lambda pool: {pool.maintain_pool: 0.2})
    if IMPATIENT.items() <= os.environ.items():
        Guard.__init__.__kwdefaults__["patience"] = float(PATIENCE)
