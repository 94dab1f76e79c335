"""The RQ job of the demo."""

from __future__ import annotations

from taskguard import Fence
from taskguard.demo import scene
from taskguard.rq import singleton_task

QUEUE = "parcels"


@singleton_task(key="order", on_done="reuse_success", keep_for=3600, lease=scene.pace().lease)
def ship(order: str, fence: Fence) -> int:
    ledger = scene.ledger()
    ledger.log("begin", order, fence.token)
    ledger.wait_for_bank(order)
    with ledger.open() as connection:
        if fence.once(connection):
            ledger.charge(connection, order, fence.token)
    return fence.token
