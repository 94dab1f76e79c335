"""A job that dies, or falls asleep, at every step, and is taken over: what can happen to it is tried, not argued.

The job runs in a forked process that kills itself at step 1, then in another one that does so at step 2, and so on:
before and after each question to the store, and before each line of the task's own file. Each time its lease runs out,
the queue delivers it again, and your check says whether all is well. Or it is stopped there, and goes on when another
run has replaced it.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

from taskguard.errors import ConfigurationError, TooManyStartsError
from taskguard.protocol.store import Entry
from taskguard.stores.sqlite import SQLiteStore
from taskguard.testing.children import Child, End
from taskguard.testing.clock import SharedClock
from taskguard.testing.deliveries import Delivery, delivery_of
from taskguard.testing.steps import SteppingStore, Steps

AT_MOST = 500
BEHIND_THE_SLEEPER = 0.5
"""So long a run that has the key may wait for what a stopped one has locked; then that one is woken."""
_FOLDER = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108
"""A process that is killed loses nothing that it gave to the kernel: a file in memory will do, and takes less time."""


def assert_survives_crashes(
    job: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    check: Callable[[], object],
    before: Callable[[], object] | None = None,
    inside: Sequence[ModuleType] = (),
    at_most: int = AT_MOST,
) -> int:
    """Kill the job at each step, have it taken over, and call *check*, which raises if an effect is lost or doubled.

    *job* is a guarded Celery task or RQ function, called with *args* and *kwargs*; or a function that takes a `Guard`.
    *before* brings the world to its beginning before each try, taskguard's own tables in it too. Lines of the modules
    *inside* are steps as well. Raises AssertionError with every step after which the check failed; returns how many
    steps there are.

    The processes are forks of this one: the job has to open its own connections.
    """
    delivery, files = _read(job, args, kwargs, inside)
    return _every_step(lambda life, step: life.die_at(step), delivery, files, check, before, at_most)


def assert_survives_pauses(
    job: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    check: Callable[[], object],
    before: Callable[[], object] | None = None,
    inside: Sequence[ModuleType] = (),
    at_most: int = AT_MOST,
) -> int:
    """Stop the job at each step past its lease, have it replaced, let it go on, and call *check*.

    What it raises when it wakes is its own affair. The rest is as for `assert_survives_crashes`.
    """
    delivery, files = _read(job, args, kwargs, inside)
    return _every_step(lambda life, step: life.sleep_at(step), delivery, files, check, before, at_most)


def _read(job: Any, args: Any, kwargs: Any, inside: Sequence[ModuleType]) -> tuple[Delivery, set[str]]:
    if not hasattr(os, "fork"):
        raise ConfigurationError("a crash is tried in a forked process, and this system has no fork")
    delivery = delivery_of(job, tuple(args), dict(kwargs or {}))
    return delivery, {delivery.file, *(str(module.__file__) for module in inside)}


def _every_step(
    live: Callable[[_Life, int], End],
    delivery: Delivery,
    files: set[str],
    check: Callable[[], object],
    before: Callable[[], object] | None,
    at_most: int,
) -> int:
    failures: list[str] = []
    clock = SharedClock()  # of all lives: what a resource remembers of one is not ahead of the next

    def attempt(step: int) -> int:
        if before is not None:
            before()
        with tempfile.TemporaryDirectory(prefix="taskguard-crash-", dir=_FOLDER) as folder:
            life = _Life(delivery, Path(folder), files, clock)
            with closing(life):
                end = live(life, step)
        try:
            check()
        except Exception as error:
            failures.append(f"  {end.at or 'undisturbed'}: {type(error).__name__}: {error}")
        return end.steps

    steps = attempt(0)
    if steps > at_most:
        raise AssertionError(f"there are {steps} steps, more than {at_most}; make the work smaller, or raise at_most=")
    for step in range(1, steps + 1):
        attempt(step)
    if failures:
        raise AssertionError(f"{len(failures)} of {steps + 1} runs end wrong:\n" + "\n".join(failures))
    return steps


class _Life:
    """One life of the job: delivered, disturbed at one step or at none, and delivered again."""

    def __init__(self, delivery: Delivery, folder: Path, files: set[str], clock: SharedClock) -> None:
        self._delivery = delivery
        self._path = folder / "taskguard.db"
        self._files = files
        self._clock = clock
        self._id = uuid4().hex
        self._children: list[Child] = []

    def close(self) -> None:
        """Leave no process behind, if this one was interrupted while it waited."""
        for child in self._children:
            child.kill()

    def die_at(self, step: int) -> End:
        first = self._deliver(step, signal.SIGKILL).end()
        _complain("fails by itself", first)
        self._let_the_lease_run_out()
        _complain(f"died {first.at}, and fails when it is delivered again", self._deliver().end())
        return first

    def sleep_at(self, step: int) -> End:
        sleeper = self._deliver(step, signal.SIGSTOP)
        if not sleeper.wait_until_stopped():
            first = sleeper.end()
            _complain("fails by itself", first)
            return first
        self._let_the_lease_run_out()
        tokens = self._tokens()
        second = self._deliver()
        while not second.is_over_within(0.05) and self._tokens() == tokens:
            pass  # it will ask for the key, whatever the sleeper has locked
        second.is_over_within(BEHIND_THE_SLEEPER)
        sleeper.go_on()
        first = sleeper.end()
        if second.end().problem:  # it may have found no way past what the sleeper had locked: the queue tries again
            self._let_the_lease_run_out()
            _complain(f"was stopped {first.at}, and fails when it is delivered again", self._deliver().end())
        return first

    def _deliver(self, step: int | None = None, number: signal.Signals = signal.SIGKILL) -> Child:
        files = self._files if step is not None else set()  # nobody counts the steps of the others

        def work(disturb: Callable[[str], None]) -> int:
            steps = Steps(step or 0, disturb)
            store: Any = SteppingStore(SQLiteStore(self._path, clock=self._clock), steps)
            with steps.tracing(files), suppress(TooManyStartsError):  # that is for the check to judge
                self._delivery.run(store, self._id)
            return steps.count

        self._children.append(Child(work, number))
        return self._children[-1]

    def _let_the_lease_run_out(self) -> None:
        held = [entry.remaining for entry in self._entries() if entry.state == "running"]
        self._clock.advance(max(held, default=0) + 1)

    def _tokens(self) -> list[int]:
        return [entry.token for entry in self._entries()]

    def _entries(self) -> list[Entry]:
        with closing(SQLiteStore(self._path, clock=self._clock)) as store:
            return list(store.scan())


def _complain(what: str, end: End) -> None:
    if end.problem:
        raise AssertionError(f"the job {what}:\n{end.problem}")
