"""A job that the kit delivers runs as its queue runs it."""

from __future__ import annotations

from taskguard import current_fence
from taskguard.protocol.entry_names import job_of
from taskguard.rq import singleton_task
from taskguard.stores.memory import MemoryStore
from taskguard.testing.deliveries import delivery_of

ran: list[str] = []


@singleton_task
async def coroutine(order: str) -> None:
    ran.append(order)


@singleton_task(hold="queued")
def beside_others(order: str) -> None:
    fence = current_fence()
    assert fence is not None
    ran.append(fence.key)


def test_a_coroutine_function_of_rq_runs_to_its_end():
    ran.clear()
    delivery_of(coroutine, ("order-1",), {}).run(MemoryStore(), "job")

    assert ran == ["order-1"]


def test_a_function_of_rq_that_holds_its_key_while_queued_leaves_it_free_while_it_runs():
    ran.clear()
    delivery_of(beside_others, ("order-1",), {}).run(MemoryStore(), "job")

    assert ran == [job_of(beside_others.taskguard.key("order-1"), "job")]
