"""What `fence.protect` and `fence.once` add to a transaction, beside the same transaction without them.

    python benchmarks/effects.py [--rounds 11] [--calls 60]

The transaction moves money: two accounts are read and changed, and two entries written, on servers that keep what they
acknowledge. The contenders take turns; a round's figure is the median of its transactions, and the one that is printed
the median of the rounds. The servers are ones that this script starts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).parent.parent))

from taskguard import Guard
from tests.fencing.databases import CLIENTS, Client, has_mysqlclient, prepare
from tests.servers import MariaDBServer, PostgresServer

Extra = Callable[[Any, Any], Any]
EXTRAS: dict[str, Extra] = {
    "bare": lambda fence, tx: None,
    "protect": lambda fence, tx: fence.protect(tx),
    "once": lambda fence, tx: fence.once(tx, uuid4().hex),  # a new effect each time: the dearer case
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--calls", type=int, default=60)
    parser.add_argument("--only", default="", help="one client")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, PostgresServer() as postgres, MariaDBServer() as mariadb:
        urls = {"postgresql": postgres.url, "mariadb": mariadb.url, "sqlite": f"sqlite:///{folder}/shop.db"}
        print(f"{'client':<20}{'bare':>10}{'protect':>18}{'once':>18}   ms per transaction, times the bare one")
        for name, (kind, connect) in CLIENTS.items():
            if arguments.only in ("", name) and (name != "mysqlclient" or has_mysqlclient()):
                prepare(urls[kind])
                with closing(connect(urls[kind])) as client:
                    report(name, measure(client, arguments.rounds, arguments.calls))


def measure(client: Client, rounds: int, calls: int) -> dict[str, float]:
    """Milliseconds of one transaction of each kind, which take turns: what disturbs one disturbs all."""
    guard = Guard("memory://")
    medians: dict[str, list[float]] = {name: [] for name in EXTRAS}
    with guard.hold("benchmark", lease=600) as fence:
        for number in range(rounds + 1):
            times: dict[str, list[float]] = {name: [] for name in EXTRAS}
            for _ in range(calls):
                for name, extra in EXTRAS.items():
                    began = time.perf_counter()
                    move(client, lambda tx, extra=extra: extra(fence, tx))
                    times[name].append((time.perf_counter() - began) * 1000)
            if number:  # the first round warms up
                for name, found in times.items():
                    medians[name].append(statistics.median(found))
    return {name: statistics.median(found) for name, found in medians.items()}


def move(client: Client, extra: Callable[[Any], Any]) -> None:
    with client.transaction() as tx:
        extra(tx)
        client.execute("SELECT cents FROM account WHERE id = 'one'")
        client.execute("UPDATE account SET cents = cents - ? WHERE id = 'one'", 1)
        client.execute("UPDATE account SET cents = cents + ? WHERE id = 'two'", 1)
        client.execute("INSERT INTO booking VALUES ('one', ?)", -1)
        client.execute("INSERT INTO booking VALUES ('two', ?)", 1)


def report(name: str, found: dict[str, float]) -> None:
    bare = found["bare"]
    others = "".join(f"{found[what]:>10.3f}  {found[what] / bare:4.2f}x" for what in ("protect", "once"))
    print(f"{name:<20}{bare:>10.3f}{others}", flush=True)


if __name__ == "__main__":
    main()
