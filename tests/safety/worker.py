"""A worker in a process of its own, told what to do line by line: what a test can stop, kill and wake.

    python -m tests.safety.worker URL NAMESPACE

How it is told, `tests.told` says.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any

from taskguard import Fence, Guard, LeaseLostError
from tests.naive import open_any
from tests.told import obey, say


class Worker:
    def __init__(self, url: str, namespace: str) -> None:
        self.guard = Guard(open_any(url, namespace=namespace))
        self.stack = ExitStack()
        self.fence: Fence | None = None

    def hold(self, key: str, lease: float, on_lost: str = "continue") -> Any:
        self.fence = self.stack.enter_context(self.guard.hold(key, lease=lease, keep_for=600, on_lost=on_lost))  # type: ignore[arg-type]
        return self.fence.token

    def write_if_held(self, path: str, line: str) -> Any:
        """What a careful body does: look at the fence, then write."""
        assert self.fence is not None
        try:
            self.fence.check()
        except LeaseLostError as error:
            return str(error)
        with open(path, "a") as file:
            file.write(f"{line}\n")
        return "written"

    def let_go(self) -> Any:
        self.stack.close()
        return "let go"

    def ledger(self, key: str, path: str, keep_for: float, lease: float) -> Any:
        """Run once: append a line, and answer with how many there are."""
        return self.guard.run(key, append, path, keep_for=keep_for, lease=lease)


def append(path: str, fence: Fence) -> Any:
    with open(path, "a") as file:
        file.write(f"{fence.token}\n")
    with open(path) as file:
        return len(file.readlines())


def main() -> None:
    worker = Worker(*sys.argv[1:3])
    say("ready")
    obey(worker)


if __name__ == "__main__":
    main()
