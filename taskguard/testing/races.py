"""Several processes (or threads, for a store of one process) that claim one key at the same moment."""

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
    """One turn: when the store granted the key, and when the holder released it."""

    token: int
    granted: float
    released: float


def winners(store: Store, opener: Opener, *, racers: int, rounds: int, keep_for: float = 600.0) -> Iterator[list[int]]:
    """For each round the tokens granted when all racers claimed one key at once."""
    for answers in zip(*_run(store, opener, racers, _claim_each_round, rounds, keep_for), strict=True):
        yield [token for token in answers if token]


def race(store: Store, opener: Opener, *, racers: int, rounds: int, keep_for: float = 600.0) -> list[Grant]:
    """The turns of racers that claim and release one key, *rounds* each, sorted by token.

    Turns do not overlap: each is released before the next is granted, by the clock that all processes of a host share.
    """
    turns = _run(store, opener, racers, _take_turns, rounds, keep_for)
    return sorted((grant for grants in turns for grant in grants), key=lambda grant: grant.token)


def completions(store: Store, opener: Opener, *, racers: int, rounds: int) -> tuple[int, int]:
    """How many jobs completed, and how many of them the store granted again to the same owner.

    In each round one racer completes a job at the moment when the others claim it again, like a redelivery.
    """
    answers = [answer for answers in _run(store, opener, racers, _complete_or_claim, rounds) for answer in answers]
    return answers.count("completed"), answers.count("granted")


def _complete_or_claim(store: Store, barrier: Any, rounds: int) -> list[str]:
    jobs = [f"job {number}" for number in range(rounds)]
    completes = barrier.wait(PATIENCE) == 0  # one racer completes all jobs, and has started them before
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
        barrier.wait(PATIENCE)  # all have claimed: the winner may release the key
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
    # A fork server without threads has imported the store once, so each process starts quickly. A process can inherit a
    # barrier but cannot receive one.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, type(store).__module__])
    barrier = context.Barrier(racers)
    with ProcessPoolExecutor(racers, mp_context=context, initializer=_meet_at, initargs=(barrier,)) as pool:
        return _gather(pool, racers, _opened, opener, work, *settings)


def _gather(pool: Executor, racers: int, work: Callable[..., list[Any]], *args: Any) -> list[list[Any]]:
    return [future.result(PATIENCE * 2) for future in [pool.submit(work, *args) for _ in range(racers)]]


_barrier: Any = None
"""The barrier in the process of each racer."""


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
