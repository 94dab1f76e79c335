"""What guarding a Celery task costs, in units of the physical limit: one bare script call on the same Redis.

    python benchmarks/celery_tasks.py [--rounds 75] [--calls 40]

Publishing is `delay` of a task that is then queued. Working is what a worker's child does with a message: Celery's own
tracer, with a body that does nothing and a result that is stored. Refusing is `delay` of a task whose twin is queued.
Rounds are interleaved (each contender once per round, in turn) and short, since the machine's own pace changes within
seconds; each figure is the median, over the rounds, of the difference or ratio within one round. What the guard does in
the background (marks, history) is brought to its end within the time of the calls that it belongs to. Broker, result
backend and store are one server, which this script starts.
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
from typing import Any
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).parent.parent))

import redis
from celery import Celery
from celery.app.trace import build_tracer

from taskguard.celery import singleton_task
from taskguard.celery.guarding import app_guard_of
from taskguard.history import flush_all
from tests.servers import RedisServer

FLOOR = "plain and one script call"
"""What is paid for one exchange in the flow of a publish, where neither cache is warm for it: no guard costs less."""
PUBLISH_LIMIT, WORK_LIMIT, REFUSE_LIMIT = 1.5, 3.0, 0.5


def body(n: str) -> None:
    """Nothing: what is measured is what happens around it."""


def make_tasks(url: str) -> dict[str, Any]:
    app = Celery("bench", broker=url, backend=url)
    app.conf.ONCE = {"backend": "celery_once.backends.Redis", "settings": {"url": url, "default_timeout": 3600}}
    app.conf.singleton_backend_url = url
    tasks = {"plain": app.task(body, name="plain"), "taskguard": singleton_task(app, name="guarded")(body)}
    for name, make in (("celery-once", once), ("celery-singleton", singleton), ("fencekit", fencekit)):
        try:
            tasks[name] = make(app, url)
        except ImportError as error:
            print(f"{name}: not here ({error}); pip install --group peers")
    app.finalize()
    return tasks


def once(app: Celery, url: str) -> Any:
    from celery_once import QueueOnce

    return app.task(body, name="once", base=QueueOnce, once={"graceful": True})


def singleton(app: Celery, url: str) -> Any:
    from celery_singleton import Singleton

    return app.task(body, name="singleton", base=Singleton)


def fencekit(app: Celery, url: str) -> Any:
    from fencekit import DistributedLock, IdempotencyGuard
    from fencekit.celery import idempotent_task

    client = redis.Redis.from_url(url)
    guarded = idempotent_task(
        guard=IdempotencyGuard(client),
        lock=DistributedLock(client),
        key=lambda n: n,
        lock_resource=lambda n: n,
        lock_ttl=timedelta(seconds=30),
        idempotency_ttl=timedelta(hours=2),
    )(body)
    return app.task(guarded, name="fencekit")


# -- what is timed -----------------------------------------------------------------------------------------------


def publishing(task: Any) -> Callable[[str], object]:
    return lambda key: task.delay(key)


def refusing(task: Any) -> Callable[[str], object]:
    twin = uuid4().hex
    task.delay(twin)
    time.sleep(0.1)  # its message is marked by then, as that of any twin that is not just being published
    return lambda key: task.delay(twin)


def working(task: Any) -> Callable[[str], object]:
    trace = build_tracer(task.name, task, app=task.app)

    def work(key: str) -> None:
        job = uuid4().hex
        request = {"id": job, "task": task.name, "retries": 0, "is_eager": False, "delivery_info": {}, "args": (key,)}
        answer = trace(job, (key,), {}, request)
        assert answer.info is None, answer

    return work


def measure(work: Callable[[str], object], calls: int, settle: Callable[[], object] = lambda: None) -> float:
    keys = [uuid4().hex for _ in range(calls)]
    started = time.perf_counter()
    for key in keys:
        work(key)
    settle()
    return (time.perf_counter() - started) / calls


def end_of_background(app: Celery) -> Callable[[], None]:
    app_guard = app_guard_of(app)

    def settle() -> None:
        app_guard.confirmations.send()
        flush_all()

    return settle


def requests(client: redis.Redis, work: Callable[[str], object], calls: int = 50) -> float:
    """Requests per call, counted by the server."""
    before = int(client.info("stats")["total_reads_processed"])
    for _ in range(calls):
        work(uuid4().hex)
    time.sleep(0.1)
    return (int(client.info("stats")["total_reads_processed"]) - before - 1) / calls


class Comparison:
    """The contenders of one kind of work, timed in turn."""

    def __init__(self, what: str, contenders: dict[str, Callable[[str], object]], settle: Callable[[], object]) -> None:
        self.what = what
        self.contenders = contenders
        self.settle = settle
        self.times: dict[str, list[float]] = {name: [] for name in contenders}

    def play_round(self, calls: int) -> None:
        for name, work in self.contenders.items():
            if name == "taskguard":
                self.times[name].append(measure(work, calls, self.settle))
            else:
                self.times[name].append(measure(work, calls))

    def more(self, name: str, script: list[float]) -> float:
        """How much more it costs than plain, in bare script calls."""
        rounds = zip(self.times[name], self.times["plain"], script, strict=True)
        return statistics.median((mine - plain) / call for mine, plain, call in rounds)

    def times_plain(self, name: str, plain: list[float]) -> float:
        return statistics.median(mine / other for mine, other in zip(self.times[name], plain, strict=True))


def main() -> int:
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=75)
    parser.add_argument("--calls", type=int, default=40)
    options = parser.parse_args()
    with closing(RedisServer("valkey")) as server:
        server.start()
        client = redis.Redis.from_url(server.url)
        script = client.register_script("return redis.call('GET', KEYS[1])")
        tasks = make_tasks(server.url)
        settle = end_of_background(tasks["plain"].app)
        publishers = {name: publishing(task) for name, task in tasks.items()}
        publishers[FLOOR] = lambda key: (script(keys=[key]), tasks["plain"].delay(key))
        publish = Comparison("publishing", publishers, settle)
        work = Comparison("working", {name: working(task) for name, task in tasks.items()}, settle)
        refusals = {name: refusing(task) for name, task in tasks.items() if name not in ("plain", "fencekit")}
        refuse = Comparison("refusing a duplicate", refusals, settle)
        calls: list[float] = []
        for comparison in (publish, work, refuse):
            comparison.play_round(50)  # warm: connections, scripts
            for times in comparison.times.values():
                times.clear()
        for _ in range(max(9, options.rounds)):
            calls.append(measure(lambda key: script(keys=[key]), options.calls))
            for comparison in (publish, work, refuse):
                comparison.play_round(options.calls)
            client.ltrim("celery", 1, 0)
        print(f"a bare script call: {statistics.median(calls) * 1e6:.0f} µs\n")
        print(f"{'':44}{'median µs':>10}{'calls more':>12}{'x publish':>11}{'requests':>10}")
        for comparison in (publish, work, refuse):
            for name, contender in comparison.contenders.items():
                median = statistics.median(comparison.times[name]) * 1e6
                more = f"{comparison.more(name, calls):12.2f}" if "plain" in comparison.times else f"{'':12}"
                ratio = f"{comparison.times_plain(name, publish.times['plain']):11.2f}"
                trips = requests(client, contender)
                print(f"{comparison.what + ', ' + name:44}{median:10.0f}{more}{ratio}{trips:10.1f}")
        figures = (
            ("publishing", publish.more("taskguard", calls), PUBLISH_LIMIT, "calls more than plain"),
            ("working", work.more("taskguard", calls), WORK_LIMIT, "calls more than plain"),
            ("refusing", refuse.times_plain("taskguard", publish.times["plain"]), REFUSE_LIMIT, "of a plain publish"),
        )
        print()
        for what, figure, limit, unit in figures:
            verdict = "within" if figure <= limit else "OVER"
            print(f"{what}: {figure:.2f} {unit}, {verdict} the limit of {limit}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
