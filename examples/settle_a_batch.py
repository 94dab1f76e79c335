"""A batch of payouts, each exactly once, although the worker dies in the middle of it.

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
    """Stands for kill -9: nothing after it runs."""


def settle(batch: str, fence: Fence) -> int:
    """One short transaction for each item: what was settled stays settled, and nobody waits for the whole batch."""
    settled = 0
    victim = next(dies_at, None)
    for name, cents in PAYOUTS.items():
        with database:
            fence.protect(database, f"balance:{name}")
            if fence.once(database, name):
                database.execute("UPDATE balance SET cents = cents + ? WHERE name = ?", (cents, name))
                if name == victim:
                    raise Killed  # this item is rolled back, the ones before it are not
                settled += 1
    return settled


guard = Guard("memory://")
try:
    guard.run("settle:2026-11", settle, "2026-11", keep_for=86400)
except Killed:
    print("the worker died at carol")
print("another one settles the other", guard.run("settle:2026-11", settle, "2026-11", keep_for=86400))

assert dict(database.execute("SELECT name, cents FROM balance")) == PAYOUTS
print("each was paid once")
