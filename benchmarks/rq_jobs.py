"""What guarding an RQ job costs: jobs per second through real `rq worker` processes, which fork for each job.

    python benchmarks/rq_jobs.py [--rounds 31] [--jobs 20] [--preload]

A round enqueues jobs of different keys; what is timed is how fast the worker gets on once all of them are there.
Rounds are interleaved (each contender once per round, in turn) and short, since the pace of a machine changes within
seconds; each figure is the median over the rounds, a ratio that of the ratios within one round. Queue and store are one
server, which this script starts. `unique=True` is RQ's own: an id chosen by the caller. Without `--preload` each work
horse imports the module of its job, as with any `rq worker`.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).parent.parent))

import redis
from rq import Queue
from rq.exceptions import DuplicateJobError

from benchmarks import rq_guarded_body, rq_plain_body
from taskguard.rq import GuardedQueue
from tests.servers import RedisServer

ROOT = Path(__file__).parent.parent
LIMIT = 0.90
OURS, PLAIN = "taskguard.rq.GuardedWorker", "rq.Worker"


class Contender:
    def __init__(self, url: str, name: str, kind: str, enqueue: Callable[[Any, str], Any], preload: bool) -> None:
        self.name = name
        self.connection = redis.Redis.from_url(url)
        make = GuardedQueue if name.startswith("taskguard") else Queue
        self.queue = make(f"bench-{uuid4().hex[:8]}", connection=self.connection)
        self._enqueue = enqueue
        command = [sys.executable, "-m", "rq.cli", "worker", "-u", url, "-w", kind, "-q", self.queue.name]
        command += ["-c", "benchmarks.rq_preload"] if preload else []
        self._worker = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.enqueueing: list[float] = []
        self.rates: list[float] = []

    def close(self) -> None:
        self._worker.terminate()
        self._worker.wait(10)
        self.connection.close()

    def run(self, jobs: int) -> None:
        keys = [uuid4().hex for _ in range(jobs)]
        finished = self.queue.finished_job_registry.key
        all_of_them = self.connection.zcard(finished) + jobs
        started = time.perf_counter()
        for key in keys:
            self._enqueue(self.queue, key)
        enqueued = time.perf_counter()
        self.enqueueing.append((enqueued - started) / jobs)
        left = all_of_them - self.connection.zcard(finished)
        self._wait_for(finished, all_of_them)
        self.rates.append(left / (time.perf_counter() - enqueued))

    def _wait_for(self, finished: str, number: int) -> None:
        give_up = time.monotonic() + 120
        while self.connection.zcard(finished) < number:
            if time.monotonic() > give_up:
                raise SystemExit(f"{self.name}: the worker does not get on; {self.queue.count} jobs are waiting")
            time.sleep(0.005)


def refusing(contender: Contender, calls: int) -> float:
    """Seconds for a call whose twin is queued."""
    queue = contender.queue.__class__(f"idle-{uuid4().hex[:8]}", connection=contender.connection)
    contender._enqueue(queue, "twin")
    started = time.perf_counter()
    for _ in range(calls):
        with suppress(DuplicateJobError):
            contender._enqueue(queue, "twin")
    return (time.perf_counter() - started) / calls


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--preload", action="store_true")
    options = parser.parse_args()
    with closing(RedisServer("valkey" if RedisServer("valkey").missing() is None else "redis-8")) as server:
        server.start()
        kinds: list[tuple[str, str, Callable[[Any, str], Any]]] = [
            ("plain", PLAIN, lambda queue, n: queue.enqueue(rq_plain_body.job, n)),
            ("unique=True", PLAIN, lambda queue, n: queue.enqueue(rq_plain_body.job, n, job_id=n, unique=True)),
            ("taskguard", OURS, lambda queue, n: queue.enqueue(rq_guarded_body.job, n)),
            ("taskguard, plain worker", PLAIN, lambda queue, n: queue.enqueue(rq_guarded_body.job, n)),
        ]
        contenders = [Contender(server.url, *kind, options.preload) for kind in kinds]
        try:
            for contender in contenders:
                contender.run(5)  # the worker is there, and the scripts are known
                contender.enqueueing.clear()
                contender.rates.clear()
            for _ in range(options.rounds):
                for contender in contenders:
                    contender.run(options.jobs)
            return report(contenders, options.rounds, options.jobs)
        finally:
            for contender in contenders:
                contender.close()


def report(contenders: list[Contender], rounds: int, jobs: int) -> int:
    plain = contenders[0]
    print(f"{rounds} rounds of {jobs} jobs, median (and range of the ratio)\n")
    print(f"{'':26}{'jobs/s':>8}{'x plain':>9}{'':>14}{'enqueue µs':>12}{'refuse µs':>11}")
    ratio = 0.0
    for contender in contenders:
        ratios = [mine / other for mine, other in zip(contender.rates, plain.rates, strict=True)]
        middle = statistics.median(ratios)
        ratio = middle if contender.name == "taskguard" else ratio
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        enqueue = statistics.median(contender.enqueueing) * 1e6
        refuse = "" if contender is plain else f"{refusing(contender, 200) * 1e6:.0f}"
        rate = statistics.median(contender.rates)
        print(f"{contender.name:26}{rate:8.1f}{middle:9.2f}{spread:>14}{enqueue:12.0f}{refuse:>11}")
    print(f"\nat least {LIMIT:.2f} x plain: {'yes' if ratio >= LIMIT else 'NO'}")
    return 0 if ratio >= LIMIT else 1


if __name__ == "__main__":
    raise SystemExit(main())
