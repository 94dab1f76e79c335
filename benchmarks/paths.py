"""How far one call and one delivery go inside the library: functions called, and switches from file to file.

    python benchmarks/paths.py

A reader who follows a job steps through these. Counted by `sys.setprofile`, after a first round that warms all caches.
Celery runs in this process with its store in memory; RQ over a server that this script starts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).parent.parent))

import redis

import taskguard
from benchmarks import rq_guarded_body
from taskguard.rq import GuardedQueue, GuardedSimpleWorker
from tests.celery.inprocess import deliver, guarded, make_app, ours_of, sent
from tests.servers import RedisServer

HOME = os.path.dirname(taskguard.__file__)


def counted(what: Callable[[], Any]) -> tuple[int, int]:
    """Functions of ours that *what* calls, and how often the file changes from one of them to the next."""
    files: list[str] = []

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(HOME):
            files.append(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        what()
    finally:
        sys.setprofile(None)
    return len(files), sum(one != other for one, other in pairwise(files))


def of_celery() -> list[tuple[int, int]]:
    app = make_app(taskguard_history=False)

    @guarded(app, name="add")
    def add(number: int) -> int:
        return number

    found = []
    for number in range(3):
        call = counted(lambda number=number: add.delay(number))  # type: ignore[misc]
        [message] = sent(app)
        job, ours = message.headers["id"], ours_of(message)
        found = [call, counted(lambda job=job, ours=ours, number=number: deliver(add, job, number, **ours))]  # type: ignore[misc]
    return found


def of_rq() -> list[tuple[int, int]]:
    with RedisServer("valkey") as server, closing(redis.Redis.from_url(server.url)) as connection:
        queue = GuardedQueue("paths", connection=connection)
        worker = GuardedSimpleWorker([queue], connection=connection)
        found = []
        for _ in range(3):
            key = uuid4().hex
            call = counted(lambda key=key: queue.enqueue(rq_guarded_body.job, key))  # type: ignore[misc]
            found = [call, counted(lambda: worker.work(burst=True, max_jobs=1, logging_level="ERROR"))]
        return found


def main() -> None:
    print(f"{'':8}{'call':>24}{'delivery':>24}")
    for name, found in (("Celery", of_celery()), ("RQ", of_rq())):
        print(f"{name:8}" + "".join(f"{f'{calls} functions, {switches} switches':>24}" for calls, switches in found))


if __name__ == "__main__":
    main()
