"""Child processes that cannot outlive this one, and signals for a child together with its own children."""

from __future__ import annotations

import ctypes
import functools
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import IO, TypeAlias, TypedDict

NOBODY = 65534
"""The user and the group of servers that refuse to be root."""

_Popen: TypeAlias = "subprocess.Popen[bytes]"
_Order: TypeAlias = "tuple[Callable[[], _Popen], Future[_Popen]]"


def spawn(
    command: Sequence[str], *, log: IO[bytes], directory: Path, environment: Mapping[str, str], as_nobody: bool
) -> _Popen:
    """Start *command* in a session of its own; the kernel ends it if this process dies first (Linux only)."""

    def start() -> _Popen:
        return subprocess.Popen(
            [*_death_wish(), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env={**os.environ, **environment},
            start_new_session=True,
            **_identity(as_nobody),
        )

    return _start_in_spawner(start)


def spawn_with_pipes(command: Sequence[str]) -> _Popen:
    """Start *command*, which answers on its standard output what it is told on its standard input."""

    def start() -> _Popen:
        return subprocess.Popen([*_death_wish(), *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    return _start_in_spawner(start)


def die_with_parent() -> None:
    """In a process that was forked: the kernel ends it if its parent dies first (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _start_in_spawner(start: Callable[[], _Popen]) -> _Popen:
    started: Future[_Popen] = Future()
    _orders(os.getpid()).put((start, started))
    return started.result()


def run(
    command: Sequence[str], *, text: str, directory: Path, environment: Mapping[str, str], as_nobody: bool
) -> tuple[int, str]:
    """Run *command* to its end with *text* as its input; its exit code and all that it printed."""
    done = subprocess.run(
        command,
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=directory,
        env={**os.environ, **environment},
        **_identity(as_nobody),
    )
    return done.returncode, done.stdout


class _Identity(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


def _identity(as_nobody: bool) -> _Identity:
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if as_nobody else {}


@functools.cache
def _death_wish() -> tuple[str, ...]:
    # A command that replaces itself, not a preexec_fn: no Python runs between fork and exec, which is not safe where
    # there are threads, and the pid is the server's own.
    setpriv = shutil.which("setpriv") if sys.platform == "linux" else None
    if setpriv is None or b"--pdeathsig" not in subprocess.run([setpriv, "--help"], capture_output=True).stdout:
        return ()
    return (setpriv, "--pdeathsig", "KILL", "--")


@functools.cache
def _orders(pid: int) -> queue.SimpleQueue[_Order]:
    # The kernel's "parent" is the thread that forked. All servers come from one thread that lives as long as the
    # process, so that a server started by a short-lived thread stays up. Keyed by pid: a fork has no such thread.
    orders: queue.SimpleQueue[_Order] = queue.SimpleQueue()
    threading.Thread(target=_carry_out, args=(orders,), name=f"spawner-{pid}", daemon=True).start()
    return orders


def _carry_out(orders: queue.SimpleQueue[_Order]) -> None:
    while True:
        start, started = orders.get()
        try:
            started.set_result(start())
        except BaseException as error:
            started.set_exception(error)


def freeze(process: _Popen) -> None:
    """Stop *process* and its children; what they were sent waits for `thaw()`."""
    # The parent first: it then starts no child that would be missed.
    _send([process.pid], signal.SIGSTOP)
    _send(_children(process.pid), signal.SIGSTOP)


def thaw(process: _Popen) -> None:
    """Let *process* and its children go on."""
    _send([*_children(process.pid), process.pid], signal.SIGCONT)


def crash(process: _Popen) -> None:
    """End *process* and its children without a chance to clean up; return when all are gone."""
    _send([process.pid], signal.SIGSTOP)
    children = _children(process.pid)
    _send([*children, process.pid], signal.SIGKILL)
    process.wait()
    _await_end(children)


def _send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # threads come and go
            found += map(int, thread.read_text().split())
    return found


def _await_end(pids: Sequence[int]) -> None:
    # A backend of PostgreSQL that is not quite gone holds the shared memory, and the next server refuses to start.
    deadline = time.monotonic() + 5
    while any(map(_lives, pids)) and time.monotonic() < deadline:
        time.sleep(0.002)


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
