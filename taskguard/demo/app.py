"""The Celery app of the demo's workers and beats."""

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
            # The score counts every slot, even one that both beats were late for.
            "options": {"overlap": "allow_all", "catch_up": "all"},
        }
    },
)


@singleton_task(app, key="order", on_done="reuse_success", keep_for=3600, lease=pace.lease)
def charge(order: str, fence: Fence) -> int:
    """A charge that happens once, even if a worker dies: the effect and its record commit together."""
    ledger.log("begin", order, fence.token)
    ledger.wait_for_bank(order)
    with ledger.open() as connection:
        if fence.once(connection):
            ledger.charge(connection, order, fence.token)
    return fence.token


@singleton_task(app, key="order", key_space="bank", lease=pace.lease, on_lost="continue")
def charge_fenced(order: str, fence: Fence) -> None:
    """A charge that a superseded holder cannot make.

    With `on_lost="continue"` nothing interrupts the body of a superseded holder: its write reaches the fence.
    """
    ledger.log("begin", order, fence.token)
    ledger.wait_for_bank(order)
    try:
        with ledger.open() as connection:
            fence.protect(connection, resource=order)
            ledger.charge(connection, order, fence.token)
    except StaleFenceError as error:
        ledger.log("refused", order, fence.token, str(error))
        raise
    ledger.log("wrote", order, fence.token)


@app.task(acks_late=True)  # type: ignore[untyped-decorator]
def charge_plain(order: str) -> None:
    """The same without taskguard."""
    ledger.log("begin", order)
    ledger.wait_for_bank(order)
    with ledger.open() as connection:
        ledger.charge(connection, order)
    ledger.log("wrote", order)


@singleton_task(app, lease=pace.lease)
def tick(fence: Fence) -> Any:
    """One run of the schedule. The fence has its slot, whichever beat published it and whenever it runs."""
    # With TASKGUARD_OFF=1 the fence has no slot: the clock is the best guess.
    slot = fence.scheduled_for.timestamp() if fence.scheduled_for is not None else time.time()
    with ledger.open() as connection:
        ledger.charge(connection, f"tick {slot:.0f}", fence.token)
