"""Where the programs of the servers are, and which version they are."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from importlib.util import find_spec
from pathlib import Path

_SYSTEM = "/usr/bin:/usr/sbin:/usr/local/bin:/usr/local/sbin:/opt/homebrew/bin"


def in_wheel(package: str, pattern: str) -> Path | None:
    """The first executable that matches *pattern* inside an installed *package*, which is not imported."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return None
    return next(filter(_executable, sorted(Path(spec.origin).parent.glob(pattern))), None)


def in_system(name: str) -> Path | None:
    """The operating system's own *name*, never that of a virtual environment."""
    found = shutil.which(name, path=_SYSTEM)
    return Path(found) if found else None


def version(binary: Path) -> str:
    """The version that *binary* prints, or "?"."""
    printed = subprocess.run([binary, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"\d+(\.\d+)+", printed)
    return found.group() if found else "?"


def origin(binary: Path) -> str:
    """Who brought *binary*: a "wheel" or the "system"."""
    return "wheel" if "site-packages" in binary.parts else "system"


def open_to_all(path: Path) -> bool:
    """Whether every user can get through *path* and all directories above it."""
    path = path.resolve()
    return all(step.stat().st_mode & stat.S_IXOTH for step in (path, *path.parents))


def _executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
