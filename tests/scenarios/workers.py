"""The workers of one queue as a scenario speaks of them: processes of their own, on real servers.

The functions that they run are those of `tests/celery/jobs.py` and `tests/rq/jobs.py`, by the names of the former.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

from celery import Celery
from rq import Retry

import tests.celery.scene
import tests.rq.scene
from taskguard.rq.guarded_job import as_guarded_job
from taskguard.rq.owner import owner_of
from tests.celery.accidents import ENVIRONMENT as ACCIDENT
from tests.celery.fleet import Fleet
from tests.celery.haste import ENVIRONMENT as HASTE
from tests.scenarios.queues import CELERY, RQ

HASTY = "tests.rq.workers.HastyWorker"
HASTY_OURS = "tests.rq.workers.HastyGuardedWorker"
DOOMED = "tests.rq.workers.DoomedWorker"


KINDS = {
    "celery": (CELERY, "redis"),
    "celery-rabbitmq": (CELERY, "rabbitmq"),
    "celery-rabbitmq-quorum": (CELERY, "rabbitmq-quorum"),
    "rq": (RQ, "guarded"),
    "rq-plain-worker": (RQ, "plain"),
}
"""The queue, and its broker or the kind of its worker."""
USUAL = ("celery", "rq")
EVERY_BROKER = ("celery", "celery-rabbitmq", "celery-rabbitmq-quorum", "rq")


def on(*kinds: str) -> Callable[[Any], Any]:
    """Run a scenario on these kinds of workers, and not on the usual ones."""

    def mark(test: Any) -> Any:
        test.kinds = kinds
        return test

    return mark


every_kind = on(*KINDS)


class CeleryWorkers(tests.celery.scene.Scene):
    queue_name = CELERY

    def __init__(self, fleet: Fleet, directory: Path, *, is_shared: bool) -> None:
        super().__init__(fleet, directory)
        self._is_shared = is_shared

    def start(self, jobs: int = 1) -> None:
        """Workers that can run so many jobs at a time; those that tests share are there already."""
        if not self._is_shared:
            self.fleet.start_worker(concurrency=jobs, environment=HASTE)

    def start_mortal(self) -> None:
        """One that is going to be killed."""
        self.fleet.start_worker()

    def logs(self) -> list[tuple[str, str]]:
        return [(worker.hostname(), worker.log()) for worker in self.fleet.workers]

    def call(self, name: str = "job", then: str = "return", *, starts: int = 1, **options: Any) -> Any:
        """A job that may be started so often: Celery delivers again whatever was not acknowledged."""
        return super().call(name, then, **options)

    def call_retried(self, **options: Any) -> Any:
        """A job whose body asks for another start, and takes its time to end."""
        return self.call(then="retry slowly", **options)

    def call_brief(self, seconds: float) -> Any:
        """A job that may start for so many seconds, and that no worker comes to before they are over."""
        return self.call(expires=seconds, countdown=2 * seconds)

    def call_without_code(self, **arguments: Any) -> Any:
        """As a process does that does not have the functions."""
        with closing(Celery("stranger", set_as_current=False)) as stranger:
            stranger.conf.update(json.loads(self.fleet._environment["TASKGUARD_TEST_SETTINGS"]))
            call = stranger.send_task("job", (self.key,), arguments)
        return self.fleet.app.AsyncResult(call.id)

    def failure(self, call: Any) -> str:
        """What its queue says of the job's failure, once it has failed."""
        error = call.get(timeout=40, propagate=False)
        assert call.state == "FAILURE", (call.state, error)
        return f"{type(error).__name__}: {error}"

    def owner(self, call: Any) -> str:
        return str(call.id)

    def wait_until_met(self, call: Any, holder: Any) -> None:
        """Until a worker has found that the holder runs, and has deferred the other job."""
        self.fleet.workers[-1].wait_for_log(f"owner {call.id}, holder {holder.id} (running)")

    def open(self) -> None:
        self.gate.open(self.key)

    # -- deaths ----------------------------------------------------------------------------------------------------

    def kill_process(self) -> None:
        """The process that runs the job; its worker lives."""
        self.fleet.workers[-1].kill_child(self.begun()[0]["pid"])

    def kill_worker(self) -> None:
        """All of it, as if its machine went; another one takes its place, and gets the message again."""
        self.fleet.workers[-1].kill()
        self.fleet.start_worker()

    def pause(self) -> Any:
        """It sleeps, with all its processes, and another one gets its job; the one that sleeps."""
        paused = self.fleet.workers[-1]
        paused.pause()
        self.fleet.start_worker()
        return paused

    def start_and_die(self, moment: str) -> None:
        """A worker that dies once, with all its processes; then one that lives."""
        moments = {"after the claim": "after the claim", "after the body": "before the result"}
        self.fleet.start_worker(environment={ACCIDENT: moments[moment]}, wait=False).wait_until_gone()
        self.fleet.start_worker()


class RQWorkers(tests.rq.scene.Scene):
    queue_name = RQ
    _NAMES = {"job": "job_"}  # noqa: RUF012 - a constant

    def __init__(self, *args: Any, is_plain: bool = False) -> None:
        super().__init__(*args)
        self._is_plain = is_plain

    def start(self, jobs: int = 1) -> None:
        for _ in range(jobs):
            self.start_worker(tests.rq.scene.PLAIN if self._is_plain else tests.rq.scene.OURS)

    def start_mortal(self) -> None:
        self.start_worker(HASTY if self._is_plain else HASTY_OURS)

    def logs(self) -> list[tuple[str, str]]:
        return [(f"worker {number}", worker.log()) for number, worker in enumerate(self.workers)]

    def call(self, name: str = "job", then: str = "return", *, starts: int = 1, **options: Any) -> Any:
        retry = {"retry": Retry(max=starts - 1)} if starts > 1 else {}
        return super().call(self._NAMES.get(name, name), then, **retry, **options)

    def call_retried(self, **options: Any) -> Any:
        return self.call(then="fail once slowly", starts=2, **options)

    def call_brief(self, seconds: float) -> Any:
        return self.call(ttl=max(1, round(seconds)))

    def call_without_code(self, **arguments: Any) -> Any:
        jobs, package = sys.modules["tests.rq.jobs"], sys.modules["tests.rq"]
        with patch.dict(sys.modules):
            del sys.modules["tests.rq.jobs"], package.jobs  # type: ignore[attr-defined]
            try:
                call = self.queue.enqueue("tests.rq.jobs.job_", self.key, **arguments)
                assert "tests.rq.jobs" not in sys.modules
            finally:
                package.jobs = jobs  # type: ignore[attr-defined]
        return call

    def entry(self, name: str = "job", *, key: str = "", part: str = "") -> Any:
        return super().entry(self._NAMES.get(name, name), key=key, part=part)

    def result(self, job: Any, within: float = 40.0) -> Any:
        return super().result(job, within)

    def failure(self, job: Any) -> str:
        self.wait_for_status(job, "failed", within=40)
        return super().failure(job)

    def owner(self, call: Any) -> str:
        job = as_guarded_job(self.fetch(call)).take_in_hand()
        return owner_of(job.id, job.repeats_left, job.envelope.run)

    def wait_until_met(self, call: Any, holder: Any) -> None:
        self.wait_for_status(call, "started")
        self.passes(0.5)  # it waits in its horse, and nobody is told of that

    def open(self, gate: str = "") -> None:
        self.gate.open(gate or self.key)

    # -- deaths ----------------------------------------------------------------------------------------------------

    def kill_process(self) -> None:
        self.begun()
        os.kill(self.workers[-1].horse(), signal.SIGKILL)

    def kill_worker(self) -> None:
        self.workers[-1].kill_all()
        self._find_abandoned()

    def pause(self) -> Any:
        paused = self.workers[-1]
        paused.pause()
        self._find_abandoned()
        return paused

    def start_and_die(self, moment: str) -> None:
        if moment == "after the claim":
            self.start_worker(DOOMED, environment={"TASKGUARD_TEST_DOOM": "after claim"})
        else:
            self.start_worker("tests.rq.workers.DiesAfterTheBody").wait()
            self._find_abandoned()

    def _find_abandoned(self) -> None:
        """RQ takes a job for abandoned when it has heard nothing of its worker for a while."""
        self.passes(3)
        self.find_abandoned()
        self.start_mortal()
