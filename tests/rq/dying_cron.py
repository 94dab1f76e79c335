"""A cron that dies at a point of its protocol: `python -m tests.rq.dying_cron POINT URL`."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import redis

from taskguard.rq.cron import GuardedCronScheduler
from taskguard.schedule.publishing import Publishing
from tests.rq.scene import CONFIG


def _die(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    point, url = sys.argv[1:]
    scheduler = GuardedCronScheduler(redis.Redis.from_url(url), republish_after=2)
    publishing: Any = Publishing
    publish = scheduler.publisher.publish

    def publish_and_die(*facts: Any) -> None:
        publish(*facts)
        _die()

    if point == "before it publishes":
        scheduler.publisher.publish = _die  # type: ignore[method-assign]
    elif point == "after it published":
        scheduler.publisher.publish = publish_and_die  # type: ignore[method-assign]
    elif point == "before it moves the mark":
        said = publishing._say_published

        def say_and_die(*facts: Any) -> None:
            said(*facts)
            _die()

        publishing._say_published = say_and_die
    scheduler.load_config_from_file(CONFIG)
    scheduler.start()


if __name__ == "__main__":
    main()
