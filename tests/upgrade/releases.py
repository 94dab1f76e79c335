"""Two releases of taskguard beside each other: this one, and an older one from the project's own history."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import pytest

from tests import forkserver

ROOT = Path(__file__).parents[2]
BEFORE = "f05e159fc497a34b8765e48c2bc86330a45c7ddd"
"""The last commit in which Celery's and RQ's layers each decided by themselves what `taskguard.engine` decides now.

Its messages, its entries and its functions on a database must be understood here, and ours there.
"""

Release = Literal["old", "new"]
RELEASES: tuple[Release, Release] = ("old", "new")


def other(release: Release) -> Release:
    return "new" if release == "old" else "old"


class Releases:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._old = directory / "old"
        self._old.mkdir()
        try:
            packed = subprocess.run(
                ["git", "archive", BEFORE, "taskguard"], cwd=ROOT, capture_output=True, check=True, timeout=60
            ).stdout
        except (OSError, subprocess.CalledProcessError):
            pytest.skip(f"the older release is not at hand: commit {BEFORE[:7]} is not in a git history here")
        subprocess.run(["tar", "-x", "-C", str(self._old)], input=packed, check=True, timeout=60)

    def environment(self, release: Release) -> dict[str, str]:
        """Where a process finds that release. The tests' own modules are the same for both."""
        paths = [str(self._old), str(ROOT)] if release == "old" else [str(ROOT)]
        return {"PYTHONPATH": os.pathsep.join(paths), "TASKGUARD_TEST_RELEASE": release, "PYTHONUNBUFFERED": "1"}

    def start(
        self, release: Release, program: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """`python -m` *program* of that release."""
        # Not in the project's directory: `python -m` would look there first.
        process = forkserver.start(
            [sys.executable, "-m", *program],
            log=log,
            directory=self._directory,
            environment={**self.environment(release), **(environment or {})},
        )
        assert isinstance(process, subprocess.Popen)
        return process

    def talker(self, release: Release, url: str, namespace: str) -> subprocess.Popen[bytes]:
        """A process of that release that carries out a store's verbs; see `talker.py`."""
        return subprocess.Popen(
            [sys.executable, "-m", "tests.upgrade.talker", url, namespace],
            cwd=self._directory,
            env={**os.environ, **self.environment(release)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
