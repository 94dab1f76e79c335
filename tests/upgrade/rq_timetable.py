"""What the crons of a rolling change run."""

from __future__ import annotations

import os

from taskguard.rq.cron import register
from tests.upgrade import rq_project

for function in (rq_project.tick, rq_project.plain_tick):
    register(
        function,
        queue_name=os.environ["TASKGUARD_TEST_QUEUE"],
        interval=1,
        overlap="allow_all",
        catch_up="all",
    )
