"""A process of its own for a function, with a line to it: what a test can stop, kill and wake."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.waiting import wait_until


class Forked:
    """Runs `function(tell, hear)` in a fork: *tell* sends a value to the test, *hear* waits for one from it."""

    def __init__(self, function: Callable[[Callable[[Any], None], Callable[[], Any]], Any]) -> None:
        from_child, to_test = os.pipe()
        from_test, to_child = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(from_child)
            os.close(to_child)
            _run(function, os.fdopen(from_test, "r"), os.fdopen(to_test, "w"))
        os.close(to_test)
        os.close(from_test)
        self._heard = os.fdopen(from_child, "r")
        self._told = os.fdopen(to_child, "w")
        self._gone: int | None = None

    def hear(self) -> Any:
        line = self._heard.readline()
        assert line, "it has ended and said nothing"
        return json.loads(line)

    def tell(self, value: Any) -> None:
        self._told.write(f"{json.dumps(value)}\n")
        self._told.flush()

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        stat = Path(f"/proc/{self.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] in "TZ", what="a process that has stopped")

    def wake(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def wait(self) -> int:
        """How it ended: its exit code, or minus the signal that killed it."""
        if self._gone is None:
            self._gone = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._gone

    def close(self) -> None:
        if self._gone is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()
        self._heard.close()
        self._told.close()


def _run(function: Callable[..., Any], source: Any, target: Any) -> None:
    def tell(value: Any) -> None:
        target.write(f"{json.dumps(value)}\n")
        target.flush()

    code = 0
    try:
        function(tell, lambda: json.loads(source.readline()))
    except BaseException:
        traceback.print_exc(file=sys.stderr)
        code = 1
    finally:
        os._exit(code)
