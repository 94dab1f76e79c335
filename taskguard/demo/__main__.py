"""Three short acts with real processes on one SQLite file, and a score read from the ledger that they wrote.

Exits with 1 if an effect is missing or doubled. No server is needed.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from taskguard.demo.worker import LEASE

CALLS = 200
WORKERS = 4


class Remote:
    """A worker process, from outside."""

    def __init__(self, url: str, ledger: Path) -> None:
        command = [sys.executable, "-m", "taskguard.demo.worker", url, str(ledger)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.hear()

    def tell(self, *words: Any) -> None:
        self._write(json.dumps(words))

    def go_on(self) -> None:
        """Wake a worker that waits for a line before it writes."""
        self.process.send_signal(signal.SIGCONT)
        self._write("")

    def _write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def answer(self) -> Any:
        """The answer to what it was told, past whatever it says on the way."""
        while True:
            word = self.hear()
            if "answer" in word:
                return word["answer"]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Demo:
    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.url = f"sqlite:///{folder / 'taskguard.db'}"
        self.ledger = folder / "ledger"
        self.stack = stack

    def worker(self) -> Remote:
        worker = Remote(self.url, self.ledger)
        self.stack.callback(worker.end)
        return worker

    def many_calls(self) -> None:
        print(f"\n1. {CALLS} calls to charge one order, to {WORKERS} processes at once")
        workers = [self.worker() for _ in range(WORKERS)]
        for number in range(CALLS):
            workers[number % WORKERS].tell("charge", "order-1")
        tokens = {workers[number % WORKERS].answer()["token"] for number in range(CALLS)}
        print(f"   every call was answered; tokens in the answers: {sorted(tokens)}")

    def killed(self) -> None:
        print("\n2. A process is killed in the middle of the work")
        victim, heir = self.worker(), self.worker()
        victim.tell("charge_slowly", "order-2", 60)
        first = victim.hear()["started"]
        print(f"   process {victim.process.pid} charges under token {first}; kill -9")
        victim.end()
        started = time.monotonic()
        heir.tell("charge_slowly", "order-2", 0)
        token = heir.answer()["token"]
        waited = time.monotonic() - started
        print(f"   process {heir.process.pid} took over after {waited:.1f} s under token {token} (lease {LEASE:g} s)")

    def stopped(self, guarded: bool) -> None:
        order = "order-3" if guarded else "order-4"
        verb = "pause_before_writing" if guarded else "pause_before_writing_unguarded"
        sleeper, other = self.worker(), self.worker()
        sleeper.tell(verb, order)
        token = sleeper.hear()["holding"]
        sleeper.process.send_signal(signal.SIGSTOP)
        print(f"   process {sleeper.process.pid}" + (f" holds token {token}" if guarded else "") + ", and is stopped")
        if guarded:
            other.tell("charge", order)
            print(f"   process {other.process.pid} charged under token {other.answer()['token']}")
        else:
            other.tell("pause_before_writing_unguarded", order)
            other.hear()
            other.go_on()
            print(f"   process {other.process.pid} charged: {other.answer()}")
        sleeper.go_on()
        print(f"   the first one wakes and wants to write: {sleeper.answer()}")

    def score(self) -> bool:
        charges = Counter(json.loads(line)["order"] for line in self.ledger.read_text().splitlines())
        guarded = ["order-1", "order-2", "order-3"]
        doubled = sum(charges[order] - 1 for order in guarded if charges[order] > 1)
        lost = sum(1 for order in guarded if not charges[order])
        print(f"\nguarded effects: {len(guarded)} expected, {sum(charges[order] for order in guarded)} found, ", end="")
        print(f"{lost} lost, {doubled} doubled; without the guard the order was charged {charges['order-4']} times")
        return not lost and not doubled and charges["order-4"] == 2


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="taskguard-demo-") as folder, ExitStack() as stack:
        demo = Demo(Path(folder), stack)
        print(f"taskguard: background work that happens once. Store: {demo.url}")
        demo.many_calls()
        demo.killed()
        print("\n3. A process is stopped past its lease, and wakes")
        demo.stopped(guarded=True)
        print("   the same without the guard:")
        demo.stopped(guarded=False)
        return 0 if demo.score() else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
