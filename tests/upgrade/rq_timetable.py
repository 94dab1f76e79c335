"""What the crons of a rolling change run."""

from __future__ import annotations

import os

from taskguard.rq.cron import register
from tests.upgrade import rq_project

for name in os.environ["TASKGUARD_TEST_TICKS"].split():
    register(
        getattr(rq_project, name),
        queue_name=os.environ["TASKGUARD_TEST_QUEUE"],
        interval=1,
        overlap="allow_all",
        catch_up="all",
    )
