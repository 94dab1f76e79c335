"""What one uncontended claim and its end cost on Redis, beside the locks people use.

    python benchmarks/locks.py [--rounds 15] [--calls 300]

Rounds are interleaved (each contender once per round, in turn), the figure is the median of the rounds, and a contender
is compared with redis-py's Lock of the same run. The server is one that this script starts.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).parent.parent))

import redis

from taskguard import Guard, open_store
from taskguard.guard import new_attempt
from taskguard.protocol.store import Claim, Ending, Lease
from tests.servers import RedisServer

Contender = Callable[[str], None]
DONE = Ending(how="succeeded", keep_for=60)


def contenders(url: str) -> dict[str, Contender]:
    client = redis.Redis.from_url(url)
    found: dict[str, Contender] = {"redis-py Lock": redis_py(client), "bare SET NX + compare and delete": bare(client)}
    store = open_store(url)

    def claim_and_complete(key: str) -> None:
        lease = store.claim(Claim(key, uuid4().hex, new_attempt(), lease=30, keep_for=60))
        assert isinstance(lease, Lease)
        assert store.complete(lease, DONE)

    guard = Guard(store)

    def hold(key: str) -> None:
        with guard.hold(key, keep_for=60):
            pass

    found["taskguard claim + complete"] = claim_and_complete
    found["taskguard Guard.hold"] = hold
    for name, make in (("python-redis-lock", python_redis_lock), ("pottery", pottery), ("fencekit", fencekit)):
        try:
            found[name] = make(client)
        except ImportError as error:
            print(f"{name}: not here ({error}); pip install --group peers")
    return found


def redis_py(client: redis.Redis) -> Contender:
    def lock(key: str) -> None:
        held = client.lock(key, timeout=30)
        assert held.acquire(blocking=False)
        held.release()

    return lock


def bare(client: redis.Redis) -> Contender:
    delete = client.register_script(
        "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
    )

    def lock(key: str) -> None:
        mine = uuid4().hex
        assert client.set(key, mine, nx=True, px=30_000)
        assert delete(keys=[key], args=[mine]) == 1

    return lock


def python_redis_lock(client: redis.Redis) -> Contender:
    import redis_lock

    def lock(key: str) -> None:
        held = redis_lock.Lock(client, key, expire=30)
        assert held.acquire(blocking=False)
        held.release()

    return lock


def pottery(client: redis.Redis) -> Contender:
    from pottery import Redlock

    def lock(key: str) -> None:
        held = Redlock(key=key, masters={client}, auto_release_time=30)
        assert held.acquire(blocking=False)
        held.release()

    return lock


def fencekit(client: redis.Redis) -> Contender:
    import fencekit as peer

    locks = peer.DistributedLock(client)
    ttl = timedelta(seconds=30)

    def lock(key: str) -> None:
        locks.release(locks.acquire(key, ttl=ttl))

    return lock


def measure(contender: Contender, calls: int) -> float:
    keys = [uuid4().hex for _ in range(calls)]
    started = time.perf_counter()
    for key in keys:
        contender(key)
    return (time.perf_counter() - started) / calls


def round_trips(client: redis.Redis, contender: Contender, calls: int = 50) -> float:
    """Requests per call, counted by the server; those that a script makes are not on the wire."""
    before = int(client.info("stats")["total_reads_processed"])
    for _ in range(calls):
        contender(uuid4().hex)
    return (int(client.info("stats")["total_reads_processed"]) - before - 1) / calls


def main() -> None:
    logging.disable(logging.DEBUG)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=300)
    options = parser.parse_args()
    with closing(RedisServer("valkey")) as server:
        server.start()
        client = redis.Redis.from_url(server.url)
        found = contenders(server.url)
        for contender in found.values():
            measure(contender, 50)  # warm: connections, scripts
        times: dict[str, list[float]] = {name: [] for name in found}
        for _ in range(max(9, options.rounds)):
            for name, contender in found.items():
                times[name].append(measure(contender, options.calls))
        base = times["redis-py Lock"]
        print(f"{'':36}{'median µs':>10}{'x redis-py Lock':>17}{'requests':>10}")
        for name, contender in found.items():
            ratio = statistics.median(t / b for t, b in zip(times[name], base, strict=True))
            trips = round_trips(client, contender)
            print(f"{name:36}{statistics.median(times[name]) * 1e6:10.0f}{ratio:17.2f}{trips:10.1f}")
        store = open_store(server.url, namespace="size")
        store.claim(Claim(f"reports.nightly:1:{uuid4().hex}", str(uuid4()), new_attempt(), lease=30, keep_for=60))
        (name,) = client.scan_iter(match="size:*")
        print(f"a held entry takes {client.memory_usage(name)} bytes")


if __name__ == "__main__":
    main()
