"""rq-scheduler itself, which is installed apart from the rest.

What it needs to read cron expressions has the same import name as what django-celery-beat needs, and is another thing.
"""

from __future__ import annotations

import atexit
import importlib
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

GROUP = f"{Path(__file__).parents[2] / 'pyproject.toml'}:aside"


@cache
def place() -> Path:
    """Where it is: put there with the environment, else now."""
    found = Path(sys.prefix) / "aside"
    if (found / "rq_scheduler").exists():
        return found
    made = Path(mkdtemp(prefix="aside-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    line = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(made), "--group", GROUP]
    if subprocess.run(line, capture_output=True, timeout=60).returncode:
        pytest.skip("rq-scheduler cannot be had here")
    return made


def their_scheduler() -> Any:
    """Its class, in this process: behind all that is installed, so that nothing else is found there."""
    if str(place()) not in sys.path:
        sys.path.append(str(place()))
    return importlib.import_module("rq_scheduler").Scheduler
