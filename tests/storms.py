"""Signals at random moments: what they raise goes through a body of work at any instruction, one or several in a row.

    storm = Storm(several=True)
    with storm:
        for _ in storm.rounds(seconds=3):
            storm.strike(lambda: guard.run(...))   # whether a signal's exception came out of it
            ...                                    # here none comes: look whether all is well

Without pytest and without drivers, so that the storms on the stores of the standard library can be run by any Python:

    python -m tests.storms sqlite verbs 3 several
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any
from uuid import uuid4

from taskguard.history import Line
from taskguard.protocol.store import Claim, Ending, Held, Lease, Store
from taskguard.stores import open_store

DONE = Ending(how="succeeded", keep_for=3000)
ENOUGH = 20
"""Rounds in which a signal has to come in time."""
LONGER = 30.0
"""The most seconds that a storm may take beyond its time until it has had them."""


class StruckError(Exception):
    """What the signal handler raises."""


class Storm:
    """Owns SIGALRM and the real-time timer of the process for as long as it is entered.

    So does pytest-timeout: mark such a test with `pytest.mark.timeout(60, method="thread")`.
    """

    def __init__(self, *, several: bool, latest: float = 300e-6, seed: int = 1) -> None:
        self._several = several
        self._latest = latest
        self._chance = random.Random(seed)
        self._left = 0
        self._handle: Callable[[], None] = _raise
        self.number = 0
        self.struck = 0
        # Whoever logs an error keeps its traceback, and with it every local variable of each frame.
        self._kept: deque[BaseException] = deque(maxlen=5)

    def __enter__(self) -> Storm:
        self._before = signal.signal(signal.SIGALRM, self._on_signal), sys.unraisablehook
        sys.unraisablehook = self._on_unraisable
        return self

    def __exit__(self, *_: object) -> None:
        sys.unraisablehook = self._before[1]
        signal.signal(signal.SIGALRM, self._before[0])
        self._kept.clear()

    def rounds(self, seconds: float, *, until: Callable[[], bool] = lambda: True) -> Iterator[int]:
        """Rounds for so many *seconds*, and on a slow machine for longer, *until* enough has happened in them."""
        end = time.monotonic() + seconds
        while time.monotonic() < end or not until():
            assert time.monotonic() < end + LONGER, f"{self.number} rounds, {self.struck} struck: not enough"
            self.number += 1
            yield self.number

    def strike(self, body: Callable[[], Any], handle: Callable[[], None] | None = None) -> bool:
        """Call *body* under signals that raise, or that call *handle*; whether an exception of theirs came out."""
        self._handle = handle or _raise
        first = self._chance.uniform(2e-6, self._latest)
        self._left = self._chance.randint(2, 6) if self._several else 1
        signal.setitimer(signal.ITIMER_REAL, first)
        try:
            self._under_fire(body)
        except Exception as error:
            if not came_of(StruckError, error):
                raise
            self._kept.append(error)
            self.struck += 1
            return True
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return False

    def _under_fire(self, body: Callable[[], Any]) -> None:
        body()

    def _on_signal(self, _number: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code is not Storm._under_fire.__code__:
            frame = None if frame.f_code is Storm._on_unraisable.__code__ else frame.f_back
        if frame is None:
            return  # not within the body: our own steps are not to be interrupted
        self._left -= 1
        if self._left > 0:
            # Each brings the next. A timer that repeats itself may be faster than its handler, which then never ends.
            signal.setitimer(signal.ITIMER_REAL, self._chance.uniform(4e-6, 60e-6))
        self._handle()

    def _on_unraisable(self, failure: Any) -> None:
        # Drivers close what was dropped in a finalizer, where Python swallows what a further signal raises.
        if not issubclass(failure.exc_type, StruckError):
            self._before[1](failure)


def _raise() -> None:
    raise StruckError


def came_of(raised: type[Exception], error: BaseException | None) -> bool:
    """Whether *error* is what a signal handler raised, or what code that is not ours made of it."""
    if isinstance(error, SystemError) and sys.version_info < (3, 11):
        # `os.stat` of Python 3.10 multiplies the three times of a file, looks for signals each time, and goes on after
        # a handler has raised. The handler of a second signal is then called with that exception set, and Python says
        # that it, or what it called, "returned a result with an exception set".
        return came_of(raised, error.__cause__)
    if isinstance(error, UnboundLocalError):
        # The `finally` of redis-py 5.0's Connection uses a variable that the interrupted `try` has not set.
        return came_of(raised, error.__context__)
    return isinstance(error, raised)


# -- storms on the verbs of a store ------------------------------------------------------------------------------


def ask(key: str, owner: str) -> Claim:
    return Claim(key, owner, uuid4().hex, lease=3000, keep_for=3000)


def storm_on_verbs(store: Store, *, seconds: float, several: bool, seed: int = 1) -> Storm:
    """Interrupt verbs; after each the store must work at once, and every answer must be that to its own question."""
    leases: list[Lease] = []
    for number in range(32):
        lease = store.claim(ask(f"held {number}", f"owner {number}"))
        assert isinstance(lease, Lease), lease
        leases.append(lease)
    chance = random.Random(seed)
    lines = [Line("key", '["text", "key"]', False)]
    before = open_files()
    storm = Storm(several=several, seed=seed)
    with storm:
        for _ in storm.rounds(seconds, until=lambda: storm.struck >= ENOUGH):
            number = chance.randrange(32)
            claim = ask(f"new {uuid4().hex}", "somebody")
            verbs: list[Callable[[], None]] = [
                lambda number=number: _check_get(store, number),  # type: ignore[misc]
                lambda number=number: _check_held(store, number),  # type: ignore[misc]
                lambda number=number: _check_renew(store, leases, number),  # type: ignore[misc]
                lambda claim=claim: _check_claim(store, claim),  # type: ignore[misc]
                lambda claim=claim: _check_claim(store, claim, ends=True),  # type: ignore[misc]
                lambda: store.history.add(lines),
            ]
            storm.strike(chance.choice(verbs))
            _check_get(store, chance.randrange(32))
            _check_renew(store, leases, chance.randrange(32))
            _check_claim(store, claim, ends=True)  # also if an interrupted one was carried out
    gc.collect()
    after = open_files()
    assert after - before <= 16, f"{before} files were open before, {after} are now"
    return storm


def storm_of_handlers(store: Store, *, seconds: float, several: bool, seed: int = 1) -> Storm:
    """Signal handlers that use the store in the middle of verbs: both must work, and of two claims one is granted."""
    storm = Storm(several=several, seed=seed)
    met: list[str] = []
    with storm:
        for number in storm.rounds(seconds, until=lambda: len(met) >= ENOUGH):
            granted: list[Lease] = []
            asked: list[str] = []
            key = f"contended {number}"

            def claim(owner: str, key: str = key, granted: list[Lease] = granted, asked: list[str] = asked) -> None:
                answer = store.claim(ask(key, owner))
                asked.append(owner)
                if isinstance(answer, Lease):
                    granted.append(answer)
                else:
                    assert isinstance(answer, Held), answer

            is_handled: list[None] = []

            def handle(claim: Callable[[str], None] = claim, is_handled: list[None] = is_handled) -> None:
                if len(is_handled) < 3:
                    is_handled.append(None)
                    claim(f"handler {len(is_handled)}")

            storm.strike(lambda claim=claim: claim("body"), handle)  # type: ignore[misc]
            assert len(granted) == 1, f"{asked} asked, and {[lease.owner for lease in granted]} hold the key"
            entry = store.get(key)
            assert entry is not None and entry.owner == granted[0].owner, (entry, granted)
            assert store.complete(granted[0], DONE)
            if len(asked) > 1:
                met.append(key)
    return storm


def _check_get(store: Store, number: int) -> None:
    entry = store.get(f"held {number}")
    assert entry is not None and entry.owner == f"owner {number}", (number, entry)


def _check_held(store: Store, number: int) -> None:
    answer = store.claim(ask(f"held {number}", "another"))
    assert isinstance(answer, Held) and answer.owner == f"owner {number}", (number, answer)


def _check_renew(store: Store, leases: list[Lease], number: int) -> None:
    assert store.renew([(leases[number], 3000)]) == [True], number


def _check_claim(store: Store, claim: Claim, *, ends: bool = False) -> None:
    answer = store.claim(claim)
    if isinstance(answer, Lease):
        assert (answer.key, answer.owner) == (claim.key, claim.owner), (claim, answer)
        if ends:
            assert store.complete(answer, DONE), answer
    else:
        assert not isinstance(answer, Held), answer  # its own end, which an interrupted verb has recorded


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


STORMS = {"verbs": storm_on_verbs, "handlers": storm_of_handlers}


def main(kind: str, which: str, seconds: str, signals: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = open_store("memory://" if kind == "memory" else f"sqlite:///{folder}/taskguard.db?timeout=2")
        storm = STORMS[which](store, seconds=float(seconds), several=signals == "several")
        store.close()
    print(f"{storm.number} rounds, {storm.struck} struck, {open_files()} files open")


if __name__ == "__main__":
    main(*sys.argv[1:])
