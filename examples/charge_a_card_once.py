"""Charges a card once and books it once, although the worker dies at the worst moments.

python examples/charge_a_card_once.py
"""

import sqlite3

from taskguard import Fence, Guard


class Provider:
    """A payment API with idempotency keys: the same key is the same charge."""

    def __init__(self) -> None:
        self.charges: dict[str, int] = {}

    def charge(self, cents: int, idempotency_key: str) -> str:
        self.charges.setdefault(idempotency_key, cents)
        return f"receipt-{list(self.charges).index(idempotency_key)}"


class Killed(BaseException):
    """Simulates kill -9."""


provider = Provider()
database = sqlite3.connect("shop.db")
database.execute("CREATE TABLE IF NOT EXISTS payment (order_id INTEGER, receipt TEXT)")
database.execute("DELETE FROM payment")
database.commit()
accidents = iter(["after the charge", "after the commit"])


def charge(order_id: int, cents: int, fence: Fence) -> str:
    accident = next(accidents, None)
    # 1. The key is the same in every run of this work: the provider treats a second request as the same charge.
    receipt = provider.charge(cents, fence.idempotency_key)
    if accident == "after the charge":
        raise Killed
    # 2. `once` protects our own books: the row and the record that it happened commit together.
    with database:
        fence.protect(database)  # raises if a newer holder took over while this worker was paused
        booked = fence.once(database, "booking")
        if booked:
            database.execute("INSERT INTO payment VALUES (?, ?)", (order_id, receipt))
            booked.keep(receipt)
    if accident == "after the commit":
        raise Killed
    return receipt if booked else booked.value


guard = Guard("memory://")
for _ in range(5):  # the queue redelivers the job
    try:
        print(guard.run("charge:7", charge, 7, 4200, keep_for=86400))
    except Killed:
        print("the worker died")

assert len(provider.charges) == 1
assert database.execute("SELECT * FROM payment").fetchall() == [(7, "receipt-0")]
print("charged once, booked once")
