"""The story that fencing is for, with real processes: a holder is stopped between its check and its write, its lease
runs out, another one takes over and completes, and then the first one wakes and writes.

    python -m tests.fencing.kleppmann STORE MODULE:RESOURCE TARGET

is one holder, told what to do line by line. RESOURCE(TARGET) is where it writes:

    prepare(fence, text) -> Callable[[], None]   the write, ready to be made; with None for the fence, an unguarded one
    read() -> str                                what was written last
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from typing import Protocol

from taskguard import Fence, Guard, LeaseLostError, StaleFenceError, StoreUnavailableError
from tests.told import ToldProcess, obey, say

LEASE = 0.15


class Resource(Protocol):
    def prepare(self, fence: Fence | None, text: str) -> Callable[[], None]: ...

    def read(self) -> str: ...


class Holder(ToldProcess):
    """The test's side of one holder."""

    def __init__(self, store: str, resource: str, target: str) -> None:
        super().__init__("tests.fencing.kleppmann", store, resource, target)


class Story:
    """Two holders of one key, and what they write to one resource, again and again."""

    def __init__(self, first: Holder, second: Holder, *, seed: int) -> None:
        self._first = first
        self._second = second
        self._dice = random.Random(seed)
        self._number = 0

    def told(self, *, fenced: bool, random_moment: bool = False) -> tuple[str, str, str]:
        """Once: what became of the first one's write, what the second one wrote, and what is there at the end.

        The first one is stopped before its write; at a *random_moment* it may also be within it, or past it.
        """
        self._number += 1
        key = f"job {self._number} of {id(self)}"
        while not self._ready_to_write(key, fenced):  # a slow machine took its lease before the story began
            self._first.ask("let_go")
        if random_moment:
            self._first.tell("go")
            time.sleep(self._dice.uniform(0, 0.004))
            self._first.stop()
        else:
            self._first.stop()
            self._first.tell("go")
        newer = f"second {self._number}"
        assert self._second.ask("hold", key, 30.0) > 0
        self._write_second(newer, fenced)
        self._second.ask("let_go")
        self._first.wake()
        outcome = self._first.answer()
        self._first.ask("let_go")
        return outcome, newer, self._second.ask("read")

    def _ready_to_write(self, key: str, fenced: bool) -> bool:
        self._first.ask("hold", key, LEASE)
        return bool(self._first.ask("write", f"first {self._number}", fenced) == "checked")

    def _write_second(self, text: str, fenced: bool) -> None:
        while True:
            assert self._second.ask("write", text, fenced) == "checked"
            outcome = self._second.ask("go")
            if outcome == "written":
                return
            # The first one was stopped within its write, which holds the resource itself: nobody can pass before it.
            assert outcome == "blocked", outcome
            self._first.wake()


class _Worker:
    def __init__(self, store: str, resource: str, target: str) -> None:
        module, _, name = resource.partition(":")
        self.resource: Resource = getattr(import_module(module), name)(target)
        self.guard = Guard(store, namespace=f"kleppmann:{os.getppid()}", listeners=())
        self.stack = ExitStack()
        self.fence: Fence | None = None

    def hold(self, key: str, lease: float) -> int:
        held = self.guard.hold(key, lease=lease, wait_up_to=20, keep_for=600, on_lost="continue")
        self.fence = self.stack.enter_context(held)
        return self.fence.token

    def write(self, text: str, fenced: bool) -> str:
        """What a careful body does: look at the fence, then write; and it is between the two that it is stopped."""
        assert self.fence is not None
        try:
            self.fence.check()
            write = self.resource.prepare(self.fence if fenced else None, text)
            self.fence.check()
        except LeaseLostError:
            return "lost"
        say("checked")
        sys.stdin.readline()
        try:
            write()
        except StaleFenceError as error:
            return "refused" if error.mark > error.token == self.fence.token else repr(error)
        except StoreUnavailableError:
            return "blocked"
        return "written"

    def let_go(self) -> str:
        self.stack.close()
        return "let go"

    def read(self) -> str:
        return self.resource.read()


def main() -> None:
    obey(_Worker(*sys.argv[1:4]))


if __name__ == "__main__":
    main()
