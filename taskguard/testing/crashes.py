"""Kills or stops a job at every step, lets another run take over, and checks the result.

The job runs in a forked process that kills itself at step 1, then in another one that does so at step 2, and so on. The
steps are before and after each call of the store, and before each line of the task's own file. Each time the lease
expires, the job is delivered again, and your check inspects the result. Or the process is stopped there, and continues
after another run has taken over.
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
"""Seconds that the run with the key may wait for a lock of the stopped process; then that one wakes."""
_FOLDER = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108
"""A file in memory is enough, and faster: a killed process loses nothing that it gave to the kernel."""


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
    """Kill the job at each step, let another run take over, and call *check*, which must raise if effects are wrong.

    *job* is a guarded Celery task or RQ function, called with *args* and *kwargs*; or a function that takes a `Guard`.
    *before* resets the world before each try, including taskguard's tables in it. Lines of the modules *inside* are
    steps too. Raises AssertionError with every step after which the check failed; returns the number of steps.

    The processes are forks of this one: the job must open its own connections.
    """
    delivery, files = _read(job, args, kwargs, inside)
    return _every_step(lambda one_try, step: one_try.die_at(step), delivery, files, check, before, at_most)


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
    """Stop the job at each step until its lease has expired, let another run take over, wake it, and call *check*.

    What the job raises when it wakes does not matter. Otherwise like `assert_survives_crashes`.
    """
    delivery, files = _read(job, args, kwargs, inside)
    return _every_step(lambda one_try, step: one_try.sleep_at(step), delivery, files, check, before, at_most)


def _read(job: Any, args: Any, kwargs: Any, inside: Sequence[ModuleType]) -> tuple[Delivery, set[str]]:
    if not hasattr(os, "fork"):
        raise ConfigurationError("this needs os.fork, which this system does not have")
    delivery = delivery_of(job, tuple(args), dict(kwargs or {}))
    return delivery, {delivery.file, *(str(module.__file__) for module in inside)}


def _every_step(
    live: Callable[[_Try, int], End],
    delivery: Delivery,
    files: set[str],
    check: Callable[[], object],
    before: Callable[[], object] | None,
    at_most: int,
) -> int:
    failures: list[str] = []
    clock = SharedClock()  # shared by all tries: the tokens of each are above those that a resource saw before

    def attempt(step: int) -> int:
        if before is not None:
            before()
        with tempfile.TemporaryDirectory(prefix="taskguard-crash-", dir=_FOLDER) as folder:
            one_try = _Try(delivery, Path(folder), files, clock)
            with closing(one_try):
                end = live(one_try, step)
        try:
            check()
        except Exception as error:
            failures.append(f"  {end.at or 'without a disturbance'}: {type(error).__name__}: {error}")
        return end.steps

    steps = attempt(0)
    if steps > at_most:
        raise AssertionError(f"there are {steps} steps, more than {at_most}; make the work smaller, or raise at_most=")
    for step in range(1, steps + 1):
        attempt(step)
    if failures:
        raise AssertionError(f"the check failed after {len(failures)} of {steps + 1} runs:\n" + "\n".join(failures))
    return steps


class _Try:
    """One try: deliver the job, disturb it at one step or at none, and deliver it again."""

    def __init__(self, delivery: Delivery, folder: Path, files: set[str], clock: SharedClock) -> None:
        self._delivery = delivery
        self._path = folder / "taskguard.db"
        self._files = files
        self._clock = clock
        self._id = uuid4().hex
        self._children: list[Child] = []

    def close(self) -> None:
        """Leave no process behind, even if a wait was interrupted."""
        for child in self._children:
            child.kill()

    def die_at(self, step: int) -> End:
        first = self._deliver(step, signal.SIGKILL).end()
        _raise_if_failed("fails even without a disturbance", first)
        self._expire_lease()
        _raise_if_failed(f"died {first.at}, and fails when the queue redelivers it", self._deliver().end())
        return first

    def sleep_at(self, step: int) -> End:
        sleeper = self._deliver(step, signal.SIGSTOP)
        if not sleeper.wait_until_stopped():
            first = sleeper.end()
            _raise_if_failed("fails even without a disturbance", first)
            return first
        self._expire_lease()
        tokens = self._tokens()
        second = self._deliver()
        while not second.is_over_within(0.05) and self._tokens() == tokens:
            pass  # it claims the key in any case, whatever the sleeper has locked
        second.is_over_within(BEHIND_THE_SLEEPER)
        sleeper.go_on()
        first = sleeper.end()
        if second.end().problem:  # the sleeper's locks may have blocked it: the queue redelivers the job
            self._expire_lease()
            _raise_if_failed(f"was stopped {first.at}, and fails when the queue redelivers it", self._deliver().end())
        return first

    def _deliver(self, step: int | None = None, number: signal.Signals = signal.SIGKILL) -> Child:
        files = self._files if step is not None else set()  # steps count only in the disturbed delivery

        def work(disturb: Callable[[str], None]) -> int:
            steps = Steps(step or 0, disturb)
            store: Any = SteppingStore(SQLiteStore(self._path, clock=self._clock), steps)
            with steps.tracing(files), suppress(TooManyStartsError):  # the check decides whether that is right
                self._delivery.run(store, self._id)
            return steps.count

        self._children.append(Child(work, number))
        return self._children[-1]

    def _expire_lease(self) -> None:
        held = [entry.remaining for entry in self._entries() if entry.state == "running"]
        self._clock.advance(max(held, default=0) + 1)

    def _tokens(self) -> list[int]:
        return [entry.token for entry in self._entries()]

    def _entries(self) -> list[Entry]:
        with closing(SQLiteStore(self._path, clock=self._clock)) as store:
            return list(store.scan())


def _raise_if_failed(what: str, end: End) -> None:
    if end.problem:
        raise AssertionError(f"the job {what}:\n{end.problem}")
