"""Checked, and never run: a line that ends with `# wrong` is an error to every checker, and no other line is."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from celery import Celery, Task
from typing_extensions import assert_type

from taskguard import Fence
from taskguard.celery import CallInfo, singleton_task
from taskguard.protocol.store import Entry

app = Celery("shop")


@singleton_task(app, key="order_id", on_done="reuse_success", keep_for=timedelta(days=1), max_retries=3)
def charge(order_id: int, cents: int, fence: Fence) -> str:
    return f"{order_id}: {cents} under {fence.token}"


@singleton_task(app, on_conflict={"enqueue": "skip", "run": "wait"}, lease=60)
def report(day: str, full: bool = False) -> int:
    return len(day)


@singleton_task(app, bind=True, name="shop.bound")
def bound(self: Any, order_id: int) -> int:
    return order_id


@singleton_task(app, bind=True, key="order_id")
def bound_with_fence(self: Any, order_id: int, fence: Fence) -> int:
    return order_id


@singleton_task(app, key="order_id")
def by_name(order_id: int, *, fence: Fence) -> int:
    return order_id


@singleton_task(app, key="order_id")
def perhaps(order_id: int, fence: Fence | None = None) -> int:
    return order_id


@singleton_task(key="order_id", name="shop.shared")
def shared(order_id: int) -> int:
    return order_id


@singleton_task
def bare(order_id: int) -> str:
    return str(order_id)


@singleton_task()
def in_brackets(order_id: int, fence: Fence) -> str:
    return str(order_id)


@singleton_task
def bare_with_fence(order_id: int, fence: Fence) -> str:
    return str(order_id)


@singleton_task(app, key="order_id")
def nothing_said(order_id, cents=0):  # type: ignore[no-untyped-def]
    return order_id


@singleton_task(app, key="order_id")
def half_said(order_id: int, cents=0):  # type: ignore[no-untyped-def]
    return order_id


@singleton_task(app, key="order_id")
class Refund(Task):  # type: ignore[misc]
    name = "shop.refund"

    def run(self, order_id: int) -> int:
        return order_id


# -- calls ---------------------------------------------------------------------------------------------------------

assert_type(report("2026-11-16"), int)
assert_type(report.delay("2026-11-16", full=True).get(timeout=3), int)
assert_type(charge.delay(1, 500).get(), str)
assert_type(charge(1, 500), str)
assert_type(charge.apply_async((1, 500), idempotency_key="order-1", countdown=3).taskguard, CallInfo)
assert_type(charge.taskguard.get(1), Entry | None)
assert_type(charge.taskguard.release(1), bool)
assert_type(bound.delay(1).id, str)
assert_type(bare.delay(1).get(), str)
assert_type(shared.delay(order_id=1).get(), int)

charge.delay(order_id=1, cents=500)
charge.run(1, 500)
bound_with_fence.delay(1)
by_name.delay(1)
perhaps.delay(1)
bare_with_fence.delay(1)
nothing_said.delay(1, 2)
half_said.delay(1, 2)
report.si("2026-11-16") | charge.s(1)
charge.AsyncResult("id").revoke()
report.name.upper()

report.delay(20261116)  # wrong
report.delay("2026-11-16", ful=True)  # wrong
report.delay()  # wrong
report(20261116)  # wrong
charge.delay("not an int", 500)  # wrong
charge.delay(1, "not an int")  # wrong
charge("not an int", 500)  # wrong
bound.delay("not an int")  # wrong
bound_with_fence.delay("not an int")  # wrong, and Any to mypy
shared.delay("not an int")  # wrong
perhaps.delay("not an int")  # wrong
in_brackets.delay("not an int")  # wrong
print(charge.delay(1, 500).taskguard.duplicat)  # wrong

singleton_task(app, on_conflict="skp")  # wrong
singleton_task(app, on_conflict="cancel_running")  # wrong
singleton_task(app, on_conflict={"enqueue": "skp", "run": "wait"})  # wrong
singleton_task(app, on_done="reus", keep_for=3)  # wrong
singleton_task(app, hold="queue")  # wrong
singleton_task(app, lease="thirty")  # wrong
singleton_task(app, bind=True, lease="thirty")  # wrong
singleton_task(app, max_starts="three")  # wrong
singleton_task(app, key=3)  # wrong
