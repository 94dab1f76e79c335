"""Calls of one release, as fast as it was told: `python -m tests.upgrade.rq_calls SEED ROUNDS PAUSE URL QUEUE`."""

from __future__ import annotations

import random
import sys
import time
from typing import Any

import redis
from rq.job import Retry

from taskguard.rq import GuardedQueue
from tests.upgrade import bodies
from tests.upgrade.rq_project import append, build, pay, refresh, returns_retry, sync

KEYS = 6


def main() -> None:
    seed, rounds, pause, url, name = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4], sys.argv[5]
    chance = random.Random(f"{seed} {bodies.RELEASE}")
    queue = GuardedQueue(name, connection=redis.Redis.from_url(url))

    def call(kind: str, key: str, function: Any, *args: Any, **options: Any) -> None:
        since = time.monotonic()
        job = queue.enqueue(function, *args, retry=Retry(max=60), result_ttl=900, **options)
        bodies.note("called", kind=kind, key=key, job=job.id, since=since)

    for number in range(rounds):
        calls = [
            lambda n=number: call("pay", f"order-{n}", pay, f"order-{n}"),
            lambda n=number: call("pay", f"order-{n}", pay, f"order-{n}"),
            lambda n=number: call("pay", f"failing-{n}", pay, f"failing-{n}", 1),
            lambda n=number: call("pay", f"keyed-{n}", pay, f"keyed-{n}", idempotency_key=f"given-{n}"),
            lambda n=number: call("refresh", f"page-{n % KEYS}", refresh, f"page-{n % KEYS}"),
            lambda n=number: call("returns_retry", f"again-{n % KEYS}", returns_retry, f"again-{n % KEYS}"),
            lambda n=number: call("sync", f"sync-{n % KEYS}", sync, f"sync-{n % KEYS}"),
            lambda n=number: call("build", f"build-{n % KEYS}", build, f"build-{n % KEYS}", n),
            lambda n=number: call("append", f"file-{n % KEYS}", append, f"file-{n % KEYS}"),
        ]
        chance.shuffle(calls)
        for made in calls:
            made()
            time.sleep(chance.uniform(0, pause))


if __name__ == "__main__":
    main()
