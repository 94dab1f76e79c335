"""Several processes, or threads where a store lives in one process, that ask for one key at the same moment."""

from __future__ import annotations

import multiprocessing
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from taskguard.protocol.store import Claim, Claimant, Ending, Lease, Store

Opener = Callable[[], Store] | None
PATIENCE = 60.0


@dataclass(frozen=True)
class Grant:
    """One turn: when the answer came, and when it was given back."""

    token: int
    granted: float
    let_go: float


def winners(store: Store, opener: Opener, *, racers: int, rounds: int, keep_for: float = 600.0) -> Iterator[list[int]]:
    """For each round the tokens granted when all racers asked for one key at once."""
    for answers in zip(*_run(store, opener, racers, _claim_each_round, rounds, keep_for), strict=True):
        yield [token for token in answers if token]


def race(store: Store, opener: Opener, *, racers: int, rounds: int, keep_for: float = 600.0) -> list[Grant]:
    """What racers were granted that took turns at one key, each as often as *rounds* says, by rising tokens.

    One at a time: each was given back before the next was granted, by the clock that all processes of a host share.
    """
    turns = _run(store, opener, racers, _take_turns, rounds, keep_for)
    return sorted((grant for grants in turns for grant in grants), key=lambda grant: grant.token)


def completions(store: Store, opener: Opener, *, racers: int, rounds: int) -> tuple[int, int]:
    """How many jobs were completed, and how many of them were granted once more, to the same owner, meanwhile.

    In each round one racer completes a job just as the others deliver it again.
    """
    answers = [answer for answers in _run(store, opener, racers, _complete_or_claim, rounds) for answer in answers]
    return answers.count("completed"), answers.count("granted")


def _complete_or_claim(store: Store, barrier: Any, rounds: int) -> list[str]:
    jobs = [f"job {number}" for number in range(rounds)]
    completes = barrier.wait(PATIENCE) == 0  # one of them does, and has started all jobs before
    if completes:
        for job in jobs:
            store.claim(Claim(job, "job", job, lease=600, keep_for=600))
    answers = []
    for job in jobs:
        barrier.wait(PATIENCE)
        if completes:
            done = store.complete(Claimant(job, "job", job), Ending(how="succeeded", keep_for=600))
            answers.append("completed" if done else "refused")
        else:
            answer = store.claim(Claim(job, "job", uuid4().hex, lease=600, keep_for=600))
            answers.append("granted" if isinstance(answer, Lease) else "answered")
    return answers


def _claim_each_round(store: Store, barrier: Any, rounds: int, keep_for: float) -> list[int]:
    tokens = []
    for number in range(rounds):
        claim = Claim(f"round {number}", uuid4().hex, uuid4().hex, lease=600, keep_for=keep_for)
        barrier.wait(PATIENCE)
        answer = store.claim(claim)
        tokens.append(answer.token if isinstance(answer, Lease) else 0)
        barrier.wait(PATIENCE)  # all have asked: the key may go
        if isinstance(answer, Lease):
            store.complete(answer, Ending(how="succeeded", keep_for=keep_for))
    return tokens


def _take_turns(store: Store, barrier: Any, rounds: int, keep_for: float) -> list[Grant]:
    grants: list[Grant] = []
    barrier.wait(PATIENCE)
    give_up = time.monotonic() + PATIENCE
    while len(grants) < rounds and time.monotonic() < give_up:
        answer = store.claim(Claim("turns", uuid4().hex, uuid4().hex, lease=600, keep_for=keep_for))
        if isinstance(answer, Lease):
            grants.append(Grant(answer.token, time.monotonic(), time.monotonic()))
            store.release(answer, Ending(keep_for=keep_for))
        else:
            time.sleep(random.uniform(0, 0.002))
    return grants


def _run(
    store: Store, opener: Opener, racers: int, work: Callable[..., list[Any]], *settings: float
) -> list[list[Any]]:
    if opener is None:
        barrier: Any = threading.Barrier(racers)
        with ThreadPoolExecutor(racers) as pool:
            return _gather(pool, racers, lambda: work(store, barrier, *settings))
    # Forked from a process that has no threads and has imported the store: many starts at the cost of one.
    # A barrier can only be inherited, not sent.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, type(store).__module__])
    barrier = context.Barrier(racers)
    with ProcessPoolExecutor(racers, mp_context=context, initializer=_meet_at, initargs=(barrier,)) as pool:
        return _gather(pool, racers, _opened, opener, work, *settings)


def _gather(pool: Executor, racers: int, work: Callable[..., list[Any]], *args: Any) -> list[list[Any]]:
    return [future.result(PATIENCE * 2) for future in [pool.submit(work, *args) for _ in range(racers)]]


_barrier: Any = None
"""Where the racers meet, in the process of each."""


def _meet_at(barrier: Any) -> None:
    global _barrier
    _barrier = barrier


def _opened(opener: Callable[[], Store], work: Callable[..., list[Any]], *settings: float) -> list[Any]:
    with _closing(opener()) as store:
        return work(store, _barrier, *settings)


@contextmanager
def _closing(store: Store) -> Iterator[Store]:
    try:
        yield store
    finally:
        store.close()
