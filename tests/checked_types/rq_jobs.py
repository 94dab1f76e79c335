"""Checked, and never run: a line that ends with `# wrong` is an error to every checker, and no other line is."""

from __future__ import annotations

from datetime import timedelta

from redis import Redis
from rq import Retry
from rq.job import Job
from typing_extensions import assert_type

from taskguard import Fence, Guard
from taskguard.protocol.store import Entry
from taskguard.rq import CallInfo, GuardedQueue, singleton_task

redis = Redis()


@singleton_task(queue="default", connection=redis, key="order_id", retry=Retry(3), namespace="shop")
def charge(order_id: int, cents: int, fence: Fence) -> str:
    return f"{order_id}: {cents} under {fence.token}"


@singleton_task(hold="running", on_store_error="fail")
def report(day: str, full: bool = False) -> int:
    return len(day)


@singleton_task
def bare(order_id: int) -> str:
    return str(order_id)


@singleton_task()
def in_brackets(order_id: int) -> str:
    return str(order_id)


class Shop:
    @singleton_task(key="order_id")
    def ship(self, order_id: int) -> int:
        return order_id


assert_type(report("2026-11-16"), int)
assert_type(report.delay("2026-11-16").taskguard, CallInfo)
assert_type(charge(1, 500), str)
assert_type(charge.taskguard.get(1), Entry | None)
charge.delay(1, 500)
charge.delay(order_id=1, cents=500)
charge.enqueue(1, 500, job_timeout=60, retry=Retry(3))
charge.enqueue_in(timedelta(hours=1), 1, 500)
job: Job = bare.delay(1)
Shop().ship(1)
GuardedQueue("default", connection=redis).enqueue(charge, 1, 500)
assert_type(Guard("memory://").run("invoice:42", len, "abc", keep_for=60), int)

report.delay(20261116)  # wrong
report("2026-11-16", ful=True)  # wrong
charge.delay("not an int", 500)  # wrong
charge("not an int", 500)  # wrong
in_brackets.delay("not an int")  # wrong
charge.enqueue_in(3, 1, 500)  # wrong
print(charge.delay(1, 500).taskguard.duplicat)  # wrong

singleton_task(on_conflict="skp")  # wrong
singleton_task(lease="thirty")  # wrong
singleton_task(on_store_error="ignore")  # wrong
singleton_task(history="all")  # wrong
