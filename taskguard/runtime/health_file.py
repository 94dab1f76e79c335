"""The file in which a beat, a cron or a worker says that it is alive, for a probe that looks from outside.

A process that is stuck or dead writes no more, and the file grows old: that is all that a probe has to know. What else
the file says (the store's last answer, the oldest slot that is due) is for people.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

VARIABLE = "TASKGUARD_HEALTH_FILE"
ROLE = "{role}"
"""What stands for `beat`, `cron` or `worker` in the name, where several share a setting."""
AT_MOST_EVERY = 1.0
"""Seconds. A beat may tick a hundred times in one."""

_logger = logging.getLogger("taskguard")


def path_of(role: str, configured: str | None = None) -> Path | None:
    """Where a process of that role writes; the environment goes before the app's settings. None: nowhere."""
    name = os.environ.get(VARIABLE) or configured
    return Path(name.replace(ROLE, role)) if name else None


class HealthFile:
    """Written by one process, and replaced as a whole: who reads it never finds half of it."""

    def __init__(self, path: Path, role: str) -> None:
        self._path = path
        self._role = role
        self._next = float("-inf")
        self._is_in_trouble = False

    @classmethod
    def of(cls, role: str, configured: str | None = None) -> HealthFile | None:
        path = path_of(role, configured)
        return None if path is None else cls(path, role)

    def write(self, facts: Callable[[], dict[str, Any]], *, now: bool = False) -> None:
        """Say that this process is alive. A file that cannot be written stops nobody: it is logged, and grows old."""
        if time.monotonic() < self._next and not now:
            return
        self._next = time.monotonic() + AT_MOST_EVERY
        said = {"role": self._role, "at": time.time(), "pid": os.getpid(), "host": socket.gethostname(), **facts()}
        try:
            self._replace(json.dumps(said).encode())
            self._is_in_trouble = False
        except OSError as error:
            if not self._is_in_trouble:
                _logger.error("could not write the heartbeat file %s, and will try again: %s", self._path, error)
            self._is_in_trouble = True

    def _replace(self, text: bytes) -> None:
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        with suppress(FileNotFoundError):
            os.unlink(beside)  # of a process that died with it in its hands
        # Never through a link that somebody else has laid, as anybody can in /tmp.
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            os.write(file, text)
        finally:
            os.close(file)
        os.replace(beside, self._path)


def read(path: Path) -> dict[str, Any] | None:
    """What the file says; None if there is none. ValueError if it is not a file of this kind."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("at"), (int, float)) or "role" not in found:
        raise ValueError(f"{path} is not a heartbeat file")
    return found
