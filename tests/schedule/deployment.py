"""Beats and workers as processes of their own: started, stopped, killed, and put in another time."""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from celery.beat import ScheduleEntry

from taskguard.celery.timetable import entry_of, facts_of
from taskguard.schedule.boundaries import MICROS, between
from taskguard.schedule.entry import ScheduledEntry, Timing
from tests import forkserver
from tests.celery.settings import QUICK_REDELIVERY
from tests.forkserver import AHEAD
from tests.ledger import Ledger, Line
from tests.schedule.project import ENVIRONMENT, schedule_of
from tests.servers import children
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
PROJECT = "tests.schedule.project"


class Process:
    """A beat or a worker; each start is a new process of the same kind."""

    def __init__(self, deployment: Deployment, name: str, command: list[str], ahead: float = 0.0) -> None:
        self.name = name
        self._deployment = deployment
        self._command = command
        self._environment = dict(deployment.environment)
        if ahead:
            self._environment[AHEAD] = str(ahead)
        self.log = deployment.directory / f"{name}.log"
        self.start()

    def start(self) -> None:
        command = [sys.executable, *self._command]
        self.process = forkserver.start(command, log=self.log, directory=ROOT, environment=self._environment)

    def kill(self) -> None:
        children.crash(self.process)

    def stop(self) -> None:
        children.freeze(self.process)

    def resume(self) -> None:
        children.thaw(self.process)

    def has_said(self, text: str) -> bool:
        said = self.log.read_text(errors="replace")
        assert self.process.poll() is None, f"{self.name} is gone\n{said[-3000:]}"
        return text in said


class Deployment:
    def __init__(
        self, directory: Path, *, broker: str, store: str | None, entries: Mapping[str, Any], **conf: Any
    ) -> None:
        self.directory = directory
        self.ledger = Ledger(directory / "ledger")
        self.processes: list[Process] = []
        self.entries = entries
        self.queue = f"queue-{uuid4().hex[:8]}"
        self.conf: dict[str, Any] = {
            "broker_url": broker,
            "task_default_queue": self.queue,
            "control_exchange": self.queue,
            "task_ignore_result": True,
            "worker_prefetch_multiplier": 1,
            "broker_connection_retry_on_startup": True,
            "result_expires": 0,
            "taskguard_store": store,
            "taskguard_namespace": self.queue,
            "taskguard_republish_after": 3,  # Redis loses what it hands to a worker that is just killed
            "beat_schedule": dict(entries),
            "ledger": str(self.ledger.path),
            **QUICK_REDELIVERY,
            **conf,
        }
        self.environment = {ENVIRONMENT: json.dumps(self.conf)}

    def beat(self, scheduler: str = "taskguard", ahead: float = 0.0) -> Process:
        name = f"beat{len(self.processes)}"
        files = ["-s", str(self.directory / f"{name}.schedule"), "--pidfile", ""]
        command = ["-m", "celery", "-A", PROJECT, "beat", "-S", scheduler, "-l", "INFO", *files]
        return self._add(name, command, ahead)

    def worker(self, pool: str = "solo", concurrency: int = 1) -> Process:
        name = f"worker{len(self.processes)}"
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        command = [
            "-m",
            "celery",
            "-A",
            PROJECT,
            "worker",
            "-P",
            pool,
            "-c",
            str(concurrency),
            "-l",
            "INFO",
            "-n",
            f"{name}@{self.queue}",
            *quiet,
        ]
        return self._add(name, command)

    def _add(self, name: str, command: list[str], ahead: float = 0.0) -> Process:
        self.processes.append(Process(self, name, command, ahead))
        return self.processes[-1]

    def wait_until_ready(self) -> None:
        for process in self.processes:
            ready = "beat: Starting" if process.name.startswith("beat") else " ready."
            wait_until(lambda p=process, r=ready: p.has_said(r), timeout=60, what=f"{process.name} is ready")

    def close(self) -> None:
        for process in self.processes:
            process.kill()

    # -- what happened ---------------------------------------------------------------------------------------------

    def entry(self, name: str) -> ScheduledEntry:
        said = self.entries[name]
        options = {key: value for key, value in said.items() if key in ("args", "kwargs", "options")}
        theirs = ScheduleEntry(
            name=name, task=said["task"], schedule=schedule_of(said["schedule"]), app=_app(), **options
        )
        return entry_of(facts_of(theirs), Timing())

    def slots(self, name: str, since: float, until: float) -> list[float]:
        schedule = self.entry(name).schedule
        return [at / MICROS for at in between(schedule, round(since * MICROS), round(until * MICROS))]

    def runs(self, name: str, what: str = "start") -> dict[float, list[Line]]:
        found: dict[float, list[Line]] = {}
        for line in self.ledger.lines(what, entry=name):
            found.setdefault(line["slot"], []).append(line)
        return found

    def told(self, name: str, kind: str) -> set[str]:
        return {line["job"] for line in self.ledger.lines(kind, entry=name)}

    def doubled(self) -> list[Line]:
        """Runs of a slot that were not begun because an earlier one of it had died."""
        seen: Counter[tuple[Any, ...]] = Counter()
        wrong = []
        for line in self.ledger.lines("start"):
            key = (line["entry"], line["slot"], line["starts"])
            seen[key] += 1
            if seen[key] > 1:
                wrong.append(line)
        return wrong


def _app() -> Any:
    from tests.schedule.project import app

    return app


@contextmanager
def deployed(directory: Path, **options: Any) -> Iterator[Deployment]:
    directory.mkdir(parents=True, exist_ok=True)
    made = Deployment(directory, **options)
    try:
        yield made
    finally:
        made.close()


def harass(deployment: Deployment, seconds: float, seed: int, *, spared: tuple[Process, ...] = ()) -> Counter[str]:
    """Kill and stop processes at random; one at a time is stopped, and what was killed is started again."""
    chance = random.Random(seed)
    done: Counter[str] = Counter()
    stopped: list[tuple[float, Process]] = []
    over = time.monotonic() + seconds
    while time.monotonic() < over:
        time.sleep(chance.uniform(0.3, 1.2))
        for until, process in list(stopped):
            if until < time.monotonic():
                process.resume()
                stopped.remove((until, process))
        busy = {id(process) for _, process in stopped} | {id(process) for process in spared}
        victim = chance.choice(deployment.processes)
        if id(victim) in busy:
            continue
        kind = victim.name.rstrip("0123456789")
        if chance.random() < 0.5:
            victim.kill()
            victim.start()
            done[f"{kind} killed"] += 1
        else:
            victim.stop()
            stopped.append((time.monotonic() + chance.uniform(1, 4), victim))
            done[f"{kind} stopped"] += 1
    for _, process in stopped:
        process.resume()
    return done
