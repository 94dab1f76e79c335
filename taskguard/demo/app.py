"""The Celery app of the demo: what its workers and its beats are started with."""

from __future__ import annotations

import time
from typing import Any

from celery import Celery

from taskguard import Fence, StaleFenceError
from taskguard.celery import singleton_task
from taskguard.demo import scene

SHOP, BANK = "shop", "bank"
TICK = 1.0

pace = scene.pace()
ledger = scene.ledger()

app = Celery("taskguard.demo", broker=f"{scene.url()}/0", backend=f"{scene.url()}/1")
app.conf.update(
    task_default_queue=SHOP,
    task_routes={"taskguard.demo.app.charge_*": {"queue": BANK}},
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    beat_schedule={
        "tick": {
            "task": "taskguard.demo.app.tick",
            "schedule": TICK,
            # Every slot counts in the ledger, also one that both beats were late for.
            "options": {"overlap": "allow_all", "catch_up": "all"},
        }
    },
)


@singleton_task(app, key="order", on_done="reuse_success", keep_for=3600, lease=pace.lease)
def charge(order: str, fence: Fence) -> int:
    """A charge that happens once, whatever dies when: the effect and the memory of it commit together."""
    ledger.tell("begin", order, fence.token)
    ledger.wait_for_bank(order)
    with ledger.open() as connection:
        if fence.once(connection):
            ledger.charge(connection, order, fence.token)
    return fence.token


@singleton_task(app, key="order", key_space="bank", lease=pace.lease, on_lost="continue")
def charge_fenced(order: str, fence: Fence) -> None:
    """A charge that a replaced holder cannot make.

    With `on_lost="continue"` the body is not told that it was replaced: it goes on, and runs into the fence.
    """
    ledger.tell("begin", order, fence.token)
    ledger.wait_for_bank(order)
    try:
        with ledger.open() as connection:
            fence.protect(connection, resource=order)
            ledger.charge(connection, order, fence.token)
    except StaleFenceError as error:
        ledger.tell("refused", order, fence.token, str(error))
        raise
    ledger.tell("wrote", order, fence.token)


@app.task(acks_late=True)  # type: ignore[untyped-decorator]
def charge_plain(order: str) -> None:
    """The same without taskguard."""
    ledger.tell("begin", order)
    ledger.wait_for_bank(order)
    with ledger.open() as connection:
        ledger.charge(connection, order)
    ledger.tell("wrote", order)


@singleton_task(app, lease=pace.lease)
def tick(fence: Fence) -> Any:
    """One run of the schedule; it knows which slot it is for, whoever published it and whenever it runs."""
    # Switched off, nobody tells it the slot; then it can only look at the clock.
    slot = fence.scheduled_for.timestamp() if fence.scheduled_for is not None else time.time()
    with ledger.open() as connection:
        ledger.charge(connection, f"tick {slot:.0f}", fence.token)
