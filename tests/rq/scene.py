"""A queue, real workers and what they did, as a test speaks of it."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest
import redis
from rq import Worker
from rq.cron import CronJob
from rq.job import Job

import tests.scene
from taskguard.engine.envelope import Envelope
from taskguard.rq import GuardedQueue, GuardedSimpleWorker
from taskguard.rq.guarded_job import ENVELOPE_FIELD
from taskguard.rq.guarding import guard_on
from taskguard.rq.job_metadata import read
from taskguard.rq.publishing import SlotPublisher
from taskguard.schedule.entry import Slot
from tests import forkserver
from tests.bodies import DIRECTORY
from tests.rq import jobs
from tests.rq.bodies import TELLS
from tests.waiting import wait_until

ENTRIES = "TASKGUARD_TEST_ENTRIES"
"""The environment variable that tells a cron what to run."""
ROOT = Path(__file__).parents[2]
OURS = "taskguard.rq.GuardedWorker"
PLAIN = "rq.Worker"
CONFIG = "tests.rq.cron_config"

both_workers = pytest.mark.parametrize("kind", [OURS, PLAIN])
mostly_ours = pytest.mark.parametrize("kind", [OURS, pytest.param(PLAIN, marks=pytest.mark.faults)])
"""What takes its time: with a plain worker in the long runs only."""


class WorkerProcess:
    """One `rq worker`. What it is sent by signal, it gets as an operator would send it."""

    def __init__(self, command: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        self._log = log
        self._process = forkserver.start(command, log=log, directory=ROOT, environment=environment)
        self.pid = self._process.pid

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for_log(self, text: str, timeout: float = 20.0) -> None:
        wait_until(lambda: text in self.log(), timeout=timeout, what=f"{text!r} in {self.log()[-3000:]}")

    def horse(self) -> int:
        """The process that runs the job."""
        children = wait_until(lambda: psutil.Process(self.pid).children(recursive=True), what="a work horse")
        return int(children[-1].pid)

    def kill(self) -> None:
        """The worker itself; its horse goes on, as it does in production."""
        os.kill(self.pid, signal.SIGKILL)
        self._process.wait(10)

    def kill_all(self) -> None:
        """As if the machine went."""
        family = [psutil.Process(self.pid), *self._family()]  # the parent first: it must not see its horse die
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(10)

    def pause(self) -> None:
        for process in [psutil.Process(self.pid), *self._family()]:
            with suppress(psutil.NoSuchProcess):  # a horse that has just ended
                process.suspend()

    def resume(self) -> None:
        for process in [psutil.Process(self.pid), *self._family()]:
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def stop(self) -> None:
        """A warm shutdown: what was begun is ended first."""
        os.kill(self.pid, signal.SIGTERM)
        self._process.wait(20)

    def wait(self, timeout: float = 30.0) -> int:
        return self._process.wait(timeout)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)
        for process in self._family():
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def _family(self) -> list[psutil.Process]:
        """All that it has started, also what it has left behind: they share its session."""
        family = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                if process.pid != self.pid and os.getsid(process.pid) == self.pid:
                    family.append(process)
        return family


class Scene(tests.scene.Scene):
    def __init__(self, url: str, directory: Path, monkeypatch: Any) -> None:
        super().__init__(directory)
        monkeypatch.setenv(DIRECTORY, str(directory))  # for bodies that run in the test process
        self.url = url
        self.directory = directory
        self.connection = redis.Redis.from_url(url)
        self.queue = GuardedQueue(f"queue-{uuid4().hex[:8]}", connection=self.connection)
        self.workers: list[WorkerProcess] = []

    def close(self) -> None:
        while self.workers:
            self.workers.pop().close()
        self.connection.close()

    # -- workers ---------------------------------------------------------------------------------------------------

    def start_worker(
        self,
        kind: str = OURS,
        *options: str,
        queue: str | None = None,
        command: str = "worker",
        wait: bool = True,
        environment: dict[str, str] | None = None,
    ) -> WorkerProcess:
        line = [sys.executable, "-m", "rq.cli", command, "-u", self.url, "--worker-class", kind, *options]
        worker = WorkerProcess(
            [*line, queue or self.queue.name],
            self.directory / f"worker{len(self.workers)}.log",
            {DIRECTORY: str(self.directory), "PYTHONUNBUFFERED": "1", TELLS: "1", **(environment or {})},
        )
        self.workers.append(worker)
        if wait and command == "worker":
            worker.wait_for_log("Listening on" if "--quiet" in options else "subscribing to channel")
        return worker

    def start_cron(
        self, entries: Sequence[dict[str, Any]], *line: str, environment: dict[str, str] | None = None
    ) -> WorkerProcess:
        """One process of the cron, ours unless *line* says another; it runs the entries on this test's queue."""
        program = line or ("taskguard.cli", "rq-cron", "-u", self.url, "--republish-after", "1", CONFIG)
        told = [{"queue_name": self.queue.name, **entry} for entry in entries]
        cron = WorkerProcess(
            [sys.executable, "-m", *program],
            self.directory / f"cron{len(self.workers)}.log",
            {DIRECTORY: str(self.directory), "PYTHONUNBUFFERED": "1", ENTRIES: json.dumps(told), **(environment or {})},
        )
        self.workers.append(cron)
        return cron

    def burst(self, kind: str = OURS, *options: str) -> WorkerProcess:
        """A worker that does what there is to do, and ends."""
        worker = self.start_worker(kind, "--burst", *options, wait=False)
        worker.wait(60)
        return worker

    def work(self, kind: type[Any] = GuardedSimpleWorker, *, max_jobs: int | None = None, **options: Any) -> None:
        """Do what there is to do, in this very process: where it matters what is done, and not by whom."""
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            worker = kind([self.queue.name], connection=self.connection, **options)
            worker.work(burst=True, max_jobs=max_jobs, logging_level="WARNING")
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    # -- jobs ------------------------------------------------------------------------------------------------------

    def call(self, name: str = "job_", then: str = "return", *, key: str = "", **options: Any) -> Any:
        """Call a job of this test's key. Options that the body does not know are RQ's."""
        return self.queue.enqueue(getattr(jobs, name), key or self.key, then, **options)

    def publish(self, slot: Slot, function: Any, *args: Any, **options: Any) -> Any:
        """Enqueue the job of a slot, as a cron does. Options are RQ's."""
        guard = guard_on(self.connection, self.queue.serializer)
        job = CronJob(func=function, queue_name=self.queue.name, args=args, interval=3600, **options)
        SlotPublisher(self.connection, guard, "taskguard", 300.0).publish(job, slot)
        return Job.fetch(slot.job_id, self.connection, serializer=self.queue.serializer)

    def entry_of(self, key: str) -> Any:
        """What the store knows of any key, that of a slot say."""
        return guard_on(self.connection, self.queue.serializer).store.get(key)

    def live(self, name: str = "job_") -> list[Any]:
        """What is queued or running under the test's key, or beside it."""
        key, store = getattr(jobs, name).taskguard.key(self.key), guard_on(self.connection, self.queue.serializer).store
        return [entry for entry in store.scan() if entry.key.startswith(key) and entry.state in ("queued", "running")]

    def entry(self, name: str = "job_", *, key: str = "", part: str = "") -> Any:
        guarded = getattr(jobs, name).taskguard
        guard = guarded.guard(self.connection, self.queue.serializer)
        return guard.store.get(guarded.key(key or self.key) + part)

    def status(self, job: Any) -> str | None:
        """What RQ says of the job; None if it does not know it."""
        found = self.queue.fetch_job(job.id)
        return None if found is None else str(found.get_status(refresh=False).value)

    def wait_for_status(self, job: Any, *statuses: str | None, within: float = 20.0) -> None:
        wait_until(
            lambda: self.status(job) in statuses,
            timeout=within,
            what=f"{statuses}, not {self.status(job)}; {[worker.log()[-2500:] for worker in self.workers]}",
        )

    def wait_for_duplicate(self, *calls: Any) -> None:
        """Until one of these jobs has asked for the key, and a worker has told it that another one runs."""
        told = re.compile(
            rf"duplicate: .*, owner \S*({'|'.join(call.id for call in calls)})\S*, holder \S+ \(running\)"
        )
        wait_until(
            lambda: any(told.search(worker.log()) for worker in self.workers),
            what=f"a duplicate in {[worker.log()[-2500:] for worker in self.workers]}",
        )

    def result(self, job: Any, within: float = 20.0) -> Any:
        self.wait_for_status(job, "finished", within=within)
        return Job.fetch(job.id, self.connection, serializer=self.queue.serializer).return_value()

    def failure(self, job: Any) -> str:
        """What RQ has written down of the job's failure."""
        found = self.fetch(job).latest_result()
        assert found is not None
        return str(found.exc_string)

    def fetch(self, job: Any) -> Job:
        return Job.fetch(job.id, self.connection, serializer=self.queue.serializer)

    def note(self, job: Any) -> Envelope:
        """What the guard has written down with the job."""
        return read(self.connection.hget(job.key, ENVELOPE_FIELD))

    @property
    def idle_workers(self) -> list[Any]:
        return [worker for worker in Worker.all(queue=self.queue) if worker.get_state() == "idle"]

    # -- the test's own doing --------------------------------------------------------------------------------------

    def open(self, gate: str = "gate") -> None:
        self.gate.open(gate)

    def find_abandoned(self) -> None:
        """Lets the next worker that starts look for abandoned jobs: RQ looks every quarter of an hour."""
        self.connection.delete(self.queue.registry_cleaning_key)

    def passes(self, seconds: float) -> None:
        time.sleep(seconds)
