"""A batch of payouts: each happens exactly once, although the worker dies in the middle.

python examples/settle_a_batch.py
"""

import sqlite3

from taskguard import Fence, Guard

PAYOUTS = {"alice": 500, "bob": 700, "carol": 900, "dave": 1100}

database = sqlite3.connect("shop.db")
database.execute("CREATE TABLE IF NOT EXISTS balance (name TEXT PRIMARY KEY, cents INTEGER)")
database.execute("DELETE FROM balance")
database.executemany("INSERT INTO balance VALUES (?, 0)", [(name,) for name in PAYOUTS])
database.commit()
dies_at = iter(["carol"])


class Killed(BaseException):
    """Simulates kill -9."""


def settle(batch: str, fence: Fence) -> int:
    """One short transaction per item: settled items stay settled, and nobody waits for the whole batch."""
    settled = 0
    victim = next(dies_at, None)
    for name, cents in PAYOUTS.items():
        with database:
            fence.protect(database, f"balance:{name}")
            if fence.once(database, name):
                database.execute("UPDATE balance SET cents = cents + ? WHERE name = ?", (cents, name))
                if name == victim:
                    raise Killed  # SQLite rolls back this item, but not the ones before it
                settled += 1
    return settled


guard = Guard("memory://")
try:
    guard.run("settle:2026-11", settle, "2026-11", keep_for=86400)
except Killed:
    print("the worker died at carol")
print("the next worker settles the other", guard.run("settle:2026-11", settle, "2026-11", keep_for=86400))

assert dict(database.execute("SELECT name, cents FROM balance")) == PAYOUTS
print("each was paid once")
