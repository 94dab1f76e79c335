"""Many callers ask for a payment; it happens once, and all of them get the same receipt.

python examples/run_once.py
"""

from concurrent.futures import ThreadPoolExecutor

from taskguard import Fence, Guard

guard = Guard("memory://")
charged = []


def charge(order: int, cents: int, fence: Fence) -> dict[str, object]:
    charged.append(order)
    # With this key the payment provider recognises a second request, even if we crash right after the first.
    return {"order": order, "cents": cents, "idempotency_key": fence.idempotency_key}


with ThreadPoolExecutor(8) as pool:
    calls = [pool.submit(guard.run, "charge:7", charge, 7, 4200, keep_for=3600) for _ in range(50)]
    receipts = [call.result() for call in calls]

assert charged == [7]
assert all(receipt == receipts[0] for receipt in receipts)
print(f"50 calls, {len(charged)} charge: {receipts[0]}")
