"""The test's side of the service in `server`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


class Service:
    def __init__(self, kind: str, url: str, ledger: Path, *, lease: float = 10.0) -> None:
        command = [sys.executable, "-m", "tests.fencing.elsewhere.server", kind, url, str(ledger), str(lease)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}"
        self.ledger = ledger

    @property
    def lines(self) -> list[str]:
        return self.ledger.read_text().splitlines() if self.ledger.exists() else []

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
