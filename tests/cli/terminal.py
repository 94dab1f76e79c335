"""A command in a terminal: what it shows there, and what it asks."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import subprocess
import sys
import termios
from collections.abc import Mapping

from tests.waiting import wait_until


class Terminal:
    """`taskguard …` with a terminal of its own, 100 columns wide."""

    def __init__(self, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self._ours, theirs = pty.openpty()
        self._shown = ""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "taskguard.cli", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            preexec_fn=_take_terminal,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40", **(environment or {})},
        )
        os.close(theirs)

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.shown, what=f"{text!r} in {self.shown!r}")

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    @property
    def raw(self) -> str:
        """All that was written so far, with what moves the cursor and colours."""
        while select.select([self._ours], [], [], 0)[0]:
            try:
                self._shown += os.read(self._ours, 65536).decode(errors="replace")
            except OSError:  # the other side has hung up
                break
        return self._shown

    @property
    def shown(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.raw)

    def end(self) -> int:
        """The exit code, once it has ended."""
        wait_until(lambda: (self.raw, self._process.poll())[1] is not None, what=f"the end; shown: {self.shown!r}")
        return int(self._process.returncode)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._ours)


def _take_terminal() -> None:
    """In the child: what is typed there, Ctrl-C too, is for it."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
