"""One round of rq-scheduler itself, which may die in the middle: `python -m tests.rq.their_scheduler POINT URL`."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import redis
from rq_scheduler import Scheduler


def _die(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    point, url = sys.argv[1:]
    connection = redis.Redis.from_url(url)
    if point == "enqueued":
        connection.zrem = _die  # type: ignore[method-assign]
    if point == "taken out":
        connection.zadd = _die  # type: ignore[method-assign]
    connection.delete(Scheduler.scheduler_lock_key)  # that of one that died runs out in ten seconds
    Scheduler(connection=connection, interval=0.1).run(burst=True)


if __name__ == "__main__":
    main()
