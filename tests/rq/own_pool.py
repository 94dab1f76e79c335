"""A pool of workers that a project starts itself: `python -m tests.rq.own_pool URL QUEUE`."""

from __future__ import annotations

import sys

import redis
from rq.worker_pool import WorkerPool

from taskguard.rq import GuardedWorker
from tests.rq.named import ByName


def main() -> None:
    url, queue = sys.argv[1:]
    connection = redis.Redis.from_url(url)
    WorkerPool([queue], connection, num_workers=2, queue_class=ByName, worker_class=GuardedWorker).start()


if __name__ == "__main__":
    main()
