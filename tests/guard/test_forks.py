"""Around a fork, whatever the other threads of the process do meanwhile."""

from __future__ import annotations

import os
import threading

import pytest

from taskguard.runtime.forks import Forked, watch_forks

FORKS = 300


class Counted(Forked):
    def __init__(self) -> None:
        self.before = self.after = 0
        self.is_open = True

    def before_fork(self) -> None:
        assert self.is_open, "a second fork began before the first was over"
        self.is_open = False
        self.before += 1

    def after_fork_in_parent(self) -> None:
        self.is_open = True
        self.after += 1

    def after_fork(self) -> None:
        self.is_open = True


def fork(counted: Counted) -> None:
    child = os.fork()
    if not child:
        os._exit(0 if counted.is_open else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_objects_that_another_thread_makes_meanwhile_keep_none_from_being_told():
    counted, is_over = Counted(), threading.Event()
    watch_forks(counted)

    def make() -> None:
        kept = []
        while not is_over.is_set():
            kept.append(Forked())
            watch_forks(kept[-1])
            if len(kept) > 3000:
                kept.clear()

    maker = threading.Thread(target=make)
    maker.start()
    try:
        for _ in range(FORKS):
            fork(counted)
    finally:
        is_over.set()
        maker.join()
    assert counted.before == counted.after == FORKS


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_threads_that_fork_at_once_take_turns():
    counted = Counted()
    watch_forks(counted)
    threads = [threading.Thread(target=lambda: [fork(counted) for _ in range(30)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted.before == counted.after == 120
    assert counted.is_open
