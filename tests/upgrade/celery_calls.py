"""Calls of one release, as fast as it was told: `python -m tests.upgrade.celery_calls SEED ROUNDS PAUSE`.

The other release's caller makes the same calls, in another order.
"""

from __future__ import annotations

import random
import sys
import time
from typing import Any

from celery import chord

from tests.upgrade import bodies
from tests.upgrade.celery_project import append, build, pay, refresh, sync, total

KEYS = 6


def main() -> None:
    seed, rounds, pause = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    chance = random.Random(f"{seed} {bodies.RELEASE}")
    for number in range(rounds):
        calls = [
            lambda n=number: call("pay", f"order-{n}", pay, f"order-{n}"),
            lambda n=number: call("pay", f"order-{n}", pay, f"order-{n}"),
            lambda n=number: call("pay", f"retried-{n}", pay, f"retried-{n}", 2),
            lambda n=number: call("pay", f"keyed-{n}", pay, f"keyed-{n}", idempotency_key=f"given-{n}"),
            lambda n=number: call("refresh", f"page-{n % KEYS}", refresh, f"page-{n % KEYS}"),
            lambda n=number: call("sync", f"sync-{n % KEYS}", sync, f"sync-{n % KEYS}"),
            lambda n=number: call("build", f"build-{n % KEYS}", build, f"build-{n % KEYS}", n),
            lambda n=number: call("append", f"file-{n % KEYS}", append, f"file-{n % KEYS}"),
        ]
        if number % 2 == 0:
            calls.append(lambda n=number: canvas(f"{bodies.RELEASE}-{n}", n))
        chance.shuffle(calls)
        for made in calls:
            made()
            time.sleep(chance.uniform(0, pause))


def call(kind: str, key: str, task: Any, *args: Any, **options: Any) -> None:
    since = time.monotonic()
    result = task.apply_async(args, **options)
    bodies.note("called", kind=kind, key=key, job=result.id, since=since)


def canvas(name: str, number: int) -> None:
    """Members whose key is called by others too, and twice by the chord itself: each has an id of its own."""
    members = [pay.s(f"order-{number}"), pay.s(f"order-{number}"), pay.s(f"order-{max(number - 1, 0)}")]
    result = chord(members, total.s(name))()
    bodies.note("called", kind="total", key=name, job=result.id)
    for member in result.parent.results:
        bodies.note("called", kind="member", key=name, job=member.id)


if __name__ == "__main__":
    main()
