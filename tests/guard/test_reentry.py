"""Code that runs in the middle of the guard's own, in the same thread, and uses the guard: it never hangs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.guard.test_signal_storms import STORES, url_of


@pytest.mark.parametrize("how", ["handler", "finalizer"])
@pytest.mark.parametrize("kind", STORES)
def test_a_signal_handler_or_a_finalizer_may_use_the_guard(
    kind: str, how: str, request: pytest.FixtureRequest, tmp_path: Path
):
    command = [sys.executable, "-m", "tests.guard.handlers", url_of(kind, request, tmp_path), how, "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)

    assert done.returncode == 0, done.stderr
