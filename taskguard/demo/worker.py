"""A worker of the demo, in a process of its own: told what to do line by line, so that it can be stopped and killed."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from taskguard import Fence, Guard, LeaseLostError

LEASE = 1.0


class Worker:
    def __init__(self, url: str, ledger: str) -> None:
        self.guard = Guard(url, listeners=[])
        self.ledger = Path(ledger)

    def charge(self, order: str) -> dict[str, int]:
        """Charge an order, as often as it is told to: the guard sees to it that it happens once."""
        return self.guard.run(f"charge:{order}", self._charge, order, keep_for=3600, lease=LEASE)

    def charge_slowly(self, order: str, seconds: float) -> dict[str, int]:
        return self.guard.run(f"charge:{order}", self._charge, order, seconds, keep_for=3600, lease=LEASE)

    def pause_before_writing(self, order: str) -> str:
        """Hold the order, say so, wait for a line of input, and write only if the fence allows it."""
        try:
            with self.guard.hold(f"charge:{order}", lease=LEASE, on_lost="continue") as fence:
                say({"holding": fence.token})
                sys.stdin.readline()
                fence.check()
                return self._write(order, fence.token)
        except LeaseLostError as error:
            return f"refused: {error}"

    def pause_before_writing_unguarded(self, order: str) -> str:
        """The same with no guard: nobody tells it that it slept."""
        say({"holding": 0})
        sys.stdin.readline()
        return self._write(order, 0)

    def _charge(self, order: str, seconds: float = 0.0, *, fence: Fence) -> dict[str, int]:
        say({"started": fence.token})
        time.sleep(seconds)
        self._write(order, fence.token)
        return {"token": fence.token}

    def _write(self, order: str, token: int) -> str:
        with self.ledger.open("a") as ledger:
            ledger.write(json.dumps({"order": order, "token": token}) + "\n")
        return "written"


def say(word: object) -> None:
    sys.stdout.write(json.dumps(word) + "\n")
    sys.stdout.flush()


def main() -> None:
    worker = Worker(*sys.argv[1:3])
    say("ready")
    while line := sys.stdin.readline():
        verb, *args = json.loads(line)
        say({"answer": getattr(worker, verb)(*args)})


if __name__ == "__main__":
    main()
