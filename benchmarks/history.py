"""What the history costs a guarded job: a claim and its end, with the history and without.

    python benchmarks/history.py [--rounds 15] [--calls 400] [--only redis]

Rounds are interleaved (each contender once per round, in turn), the figure is the median of the rounds. On a busy
machine the processor time is the surer one. What the history writes in the background is written while the rounds go
on, so it is part of both figures. Servers are started by this script.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).parent.parent))

from taskguard import Guard, open_store
from taskguard.engine.work import Work
from taskguard.protocol.policy import Policy
from tests.servers import PostgresServer, RedisServer

POLICY = Policy(lease=30, keep_for=60)
BOUND = 1.15


def claim_and_complete(guard: Guard, calls: int) -> tuple[float, float]:
    """Seconds, and seconds of this process's processor time, for one claim and its end, on average."""
    start, processor = time.perf_counter(), time.process_time()
    for _ in range(calls):
        key = uuid4().hex
        work = guard.begin(guard.new_claim(key, key, POLICY), POLICY)
        assert isinstance(work, Work)
        assert work.complete("succeeded", b"1")
    return (time.perf_counter() - start) / calls, (time.process_time() - processor) / calls


@contextmanager
def urls() -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        redis, postgres = RedisServer("valkey"), PostgresServer()
        with closing(redis), closing(postgres):
            redis.start()
            postgres.start()
            yield {"redis": redis.url, "postgresql": postgres.url, "sqlite": f"sqlite:///{folder}/taskguard.db"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    logging.disable()
    with urls() as found:
        for kind, url in found.items():
            if options.only not in ("", kind):
                continue
            guards = {history: Guard(open_store(url), history=history) for history in (False, True)}
            times: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
            for _ in range(options.rounds + 1):  # the first one warms up
                for history, guard in guards.items():
                    times[history].append(claim_and_complete(guard, options.calls))
            for number, name in enumerate(("time", "processor")):
                without, kept = (statistics.median(t[number] for t in times[on][1:]) for on in (False, True))
                print(
                    f"{kind:11} {name:10} without {without * 1e6:7.1f} µs   with {kept * 1e6:7.1f} µs   "
                    f"{kept / without:.3f}x, {'within' if kept / without <= BOUND else 'OVER'} {BOUND}x"
                )
            for guard in guards.values():
                guard.close()


if __name__ == "__main__":
    main()
