"""How much longer a chord with a large header takes if its members are guarded.

    python benchmarks/celery_chords.py [--rounds 9] [--members 200] [--profile]

Publishing is `apply_async` of the chord. Working is what a worker's child does with the messages of its header:
Celery's own tracer, with bodies that do nothing, results that are stored, and the chord counted. Whole is from
`apply_async` to the result of the chord's body, with a real worker of two processes. Rounds are interleaved (plain,
then guarded), and each ratio is the median, over the rounds, of the ratio within one round. CPU is that of this process
alone. Broker, result backend and store are one server, which this script starts. With --profile it shows where the time
of guarded members goes, beside that of plain ones.
"""

from __future__ import annotations

import argparse
import cProfile
import logging
import os
import pstats
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).parent.parent))

from celery import Celery, chord
from celery.app.trace import build_tracer

from taskguard.celery import singleton_task
from tests.servers import RedisServer

ROOT = Path(__file__).parent.parent
URL = "TASKGUARD_BENCHMARK_URL"
HERE, ELSEWHERE = "here", "elsewhere"
"""The queue that this process works off, and that of the worker."""

app = Celery("chords", broker=os.environ.get(URL), backend=os.environ.get(URL))
app.conf.broker_connection_retry_on_startup = True


def body(n: str) -> int:
    """Nothing: what is measured is what happens around it."""
    return 1


TASKS = {"plain": app.task(body, name="plain"), "guarded": singleton_task(app, name="guarded")(body)}


@app.task(name="total")
def total(values: list[int]) -> int:
    return sum(values)


def apply(name: str, members: int, queue: str) -> Any:
    header = [TASKS[name].s(uuid4().hex).set(queue=queue) for _ in range(members)]
    return chord(header, total.s().set(queue=queue)).apply_async()


def drain(queue: str) -> list[Any]:
    with app.connection_for_read() as connection, closing(connection.SimpleQueue(queue)) as messages:
        found = []
        while True:
            try:
                message = messages.get_nowait()
            except messages.Empty:
                return found
            message.ack()
            found.append(message)


def work_off(name: str, messages: list[Any]) -> None:
    """As a worker's child does it; the message of the chord's body is left in the queue."""
    trace = build_tracer(name, app.tasks[name], app=app)
    for message in messages:
        args, kwargs, embed = message.payload
        request = {**message.headers, "args": args, "kwargs": kwargs, "is_eager": False, "delivery_info": {}, **embed}
        answer = trace(message.headers["id"], args, kwargs, request)
        assert answer.info is None, answer


@contextmanager
def worker() -> Iterator[None]:
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.celery_chords", "worker", "-Q", ELSEWHERE]
    options = ["-c", "2", "-l", "WARNING", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    process = subprocess.Popen([*command, *options], cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def timed(work: Callable[..., Any], *arguments: Any) -> tuple[float, float]:
    """Seconds, and seconds of this process's CPU."""
    started, used = time.perf_counter(), time.process_time()
    work(*arguments)
    return time.perf_counter() - started, time.process_time() - used


def whole(name: str, members: int) -> None:
    assert apply(name, members, ELSEWHERE).get(timeout=120) == members


def play_round(name: str, members: int) -> dict[str, tuple[float, float]]:
    found = {"publishing": timed(apply, name, members, HERE)}
    found["working"] = timed(work_off, name, drain(HERE))
    drain(HERE)
    found["whole"] = timed(whole, name, members)
    return found


def show_profile(name: str, members: int) -> None:
    publishing, working = cProfile.Profile(), cProfile.Profile()
    publishing.runcall(apply, name, members, HERE)
    working.runcall(work_off, name, drain(HERE))
    drain(HERE)
    for what, profile in (("publishing", publishing), ("working", working)):
        print(f"\n===== {name}, {what}")
        pstats.Stats(profile).sort_stats("cumulative").print_stats(45)


def main() -> int:
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--members", type=int, default=200)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    with closing(RedisServer("valkey")) as server:
        server.start()
        os.environ[URL] = server.url
        app.conf.update(broker_url=server.url, result_backend=server.url)
        if options.profile:
            for name in TASKS:
                apply(name, 20, HERE)  # warm: connections, scripts
                work_off(name, drain(HERE))
                drain(HERE)
                show_profile(name, options.members)
            return 0
        with worker():
            for name in TASKS:
                play_round(name, 20)
            rounds = [
                {name: play_round(name, options.members) for name in TASKS} for _ in range(max(9, options.rounds))
            ]
    print(f"chords of {options.members} members, {len(rounds)} rounds\n")
    print(f"{'':18}{'plain ms':>10}{'guarded ms':>12}{'ratio':>8}")
    for what in rounds[0]["plain"]:
        for unit, index in (("", 0), (", CPU", 1)):
            plain, guarded = ([found[name][what][index] for found in rounds] for name in TASKS)
            ratio = statistics.median(mine / other for mine, other in zip(guarded, plain, strict=True))
            medians = f"{statistics.median(plain) * 1e3:10.0f}{statistics.median(guarded) * 1e3:12.0f}"
            print(f"{what + unit:18}{medians}{ratio:8.2f}")
    return 0


if __name__ == "__main__":
    # A worker imports this file by its name: one module, one app.
    from benchmarks import celery_chords

    sys.exit(celery_chords.main())
