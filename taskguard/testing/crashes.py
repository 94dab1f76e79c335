"""A job that dies at every step, and is taken over: what a crash can do to it is tried, not argued.

The job runs in a forked process that kills itself at step 1, then in another one that does so at step 2, and so on:
before and after each verb that the store is asked, and before each line of the task's own file. Each time the lease
runs out, the queue delivers the job again, and your check says whether all is well.
"""

from __future__ import annotations

import linecache
import os
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn
from uuid import uuid4

from taskguard.errors import ConfigurationError, TooManyStartsError
from taskguard.store import Store
from taskguard.stores.sqlite import SQLiteStore
from taskguard.testing.clock import SharedClock
from taskguard.testing.deliveries import Delivery, delivery_of

AT_MOST = 500
_FOLDER = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108
"""A process that is killed loses nothing that it gave to the kernel: a file in memory will do, and takes less time."""
_VERBS = ("claim", "requeue", "mark", "complete", "release")
"""Not `renew`: when that is asked depends on how fast the machine is."""


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
    if not hasattr(os, "fork"):
        raise ConfigurationError("a crash is tried in a forked process, and this system has no fork")
    delivery = delivery_of(job, tuple(args), dict(kwargs or {}))
    files = {delivery.file, *(str(module.__file__) for module in inside)}
    failures: list[str] = []
    clock = SharedClock()  # of all tries: what a resource remembers of one is not ahead of the next

    def attempt(last: int) -> int:
        if before is not None:
            before()
        with tempfile.TemporaryDirectory(prefix="taskguard-crash-", dir=_FOLDER) as folder:
            end = _Try(delivery, Path(folder), files, clock).die_at(last)
        try:
            check()
        except Exception as error:
            failures.append(f"  {end.died or 'without a crash'}: {type(error).__name__}: {error}")
        return end.steps

    steps = attempt(0)
    if steps > at_most:
        raise AssertionError(f"there are {steps} steps, more than {at_most}; make the work smaller, or raise at_most=")
    for last in range(1, steps + 1):
        attempt(last)
    if failures:
        raise AssertionError(f"{len(failures)} of {steps + 1} runs end wrong:\n" + "\n".join(failures))
    return steps


class _Try:
    """One life of the job: it dies, or ends, and is delivered again."""

    def __init__(self, delivery: Delivery, folder: Path, files: set[str], clock: SharedClock) -> None:
        self._delivery = delivery
        self._path = folder / "taskguard.db"
        self._files = files
        self._clock = clock
        self._id = uuid4().hex

    def die_at(self, last: int) -> _End:
        """How the first delivery ended; at step *last*, unless that is 0."""
        first = _in_child(lambda die: self._deliver(Steps(last, die), self._files))
        if first.problem:
            raise AssertionError(f"the job fails by itself, without a crash:\n{first.problem}")
        self._let_the_lease_run_out()
        second = _in_child(lambda die: self._deliver(Steps(0, die), set()))
        if second.problem:
            raise AssertionError(f"it died {first.died}, and fails when it is delivered again:\n{second.problem}")
        return first

    def _let_the_lease_run_out(self) -> None:
        with closing(SQLiteStore(self._path, clock=self._clock)) as store:
            held = [entry.remaining for entry in store.scan() if entry.state == "running"]
        self._clock.advance(max(held, default=0) + 1)

    def _deliver(self, steps: Steps, files: set[str]) -> int:
        store: Any = SteppingStore(SQLiteStore(self._path, clock=self._clock), steps)
        with steps.tracing(files), suppress(TooManyStartsError):  # that is for the check to judge
            self._delivery.run(store, self._id)
        return steps.count


class Steps:
    """Counts the steps of the thread that made it, and dies at one of them; at none if that is 0."""

    def __init__(self, last: int, die: Callable[[str], NoReturn]) -> None:
        self._last = last
        self._die = die
        self.count = 0
        self._thread = threading.get_ident()
        self._files: set[str] = set()

    def step(self, where: str) -> None:
        if threading.get_ident() == self._thread:
            self.count += 1
            if self.count == self._last:
                self._die(where)

    def tracing(self, files: set[str]) -> Steps:
        self._files = files
        return self

    def __enter__(self) -> None:
        if self._files:
            sys.settrace(self._enter)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        return self._line if frame.f_code.co_filename in self._files else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        if event == "line":
            text = linecache.getline(code.co_filename, frame.f_lineno).strip()
            self.step(f"before line {frame.f_lineno} of {Path(code.co_filename).name}: {text}")
        elif event == "return":
            self.step(f"at the end of {code.co_name}")
        return self._line


class SteppingStore:
    """A store of which each verb is two steps: before it is asked, and after it has answered."""

    def __init__(self, store: Store, steps: Steps) -> None:
        self._store = store
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        if name not in _VERBS:
            return verb

        def stepping(*args: Any, **kwargs: Any) -> Any:
            self._steps.step(f"before {name}")
            answer = verb(*args, **kwargs)
            self._steps.step(f"after {name}")
            return answer

        return stepping


# -- processes ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _End:
    """How a child ended: where it died by its own hand, or what it raised; or after so many steps."""

    died: str | None = None
    steps: int = 0
    problem: str = ""


_Work = Callable[[Callable[[str], NoReturn]], int]


def _in_child(work: _Work) -> _End:
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: the guard's own are fit for a fork
        pid = os.fork()
    if pid == 0:
        os.close(reader)
        _be_child(work, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(pid, 0)
    kind, _, text = said.partition("\n")
    if kind == "died":
        return _End(died=text)
    if kind == "ended":
        return _End(steps=int(text))
    return _End(problem=text or "its process ended, and said nothing")


def _be_child(work: _Work, writer: int) -> NoReturn:
    def die(where: str) -> NoReturn:
        sys.settrace(None)
        os.write(writer, f"died\n{where}".encode())
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("a process that was killed goes on")

    try:
        said = f"ended\n{work(die)}"
    except BaseException:
        sys.settrace(None)
        said = f"raised\n{traceback.format_exc()}"
    os.write(writer, said.encode())
    os._exit(0)
