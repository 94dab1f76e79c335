"""One call with the caller's own key: `python -m tests.upgrade.rq_call URL QUEUE FUNCTION ARGUMENT KEY`."""

from __future__ import annotations

import sys

import redis

from taskguard import PayloadMismatchError
from taskguard.rq import GuardedQueue
from tests.upgrade import bodies, rq_project


def main() -> None:
    url, name, function, argument, key = sys.argv[1:]
    queue = GuardedQueue(name, connection=redis.Redis.from_url(url))
    try:
        job = queue.enqueue(getattr(rq_project, function), argument, idempotency_key=key)
        bodies.note("called", job=job.id)
    except PayloadMismatchError:
        bodies.note("refused")


if __name__ == "__main__":
    main()
