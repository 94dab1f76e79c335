"""Get the servers that are not Python packages, and say which ones the tests will find.

Run as ``python -m tests.servers.setup``. Installs only as root, only what is missing, and only where there is apt-get;
everywhere else it just reports. It starts no service and always succeeds: a test without its server says so itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from . import binaries
from .mariadb import MariaDBServer
from .postgres import PgBouncer, PostgresServer
from .processes import Server
from .rabbitmq import RabbitMQServer
from .redis import FLAVOURS, RedisServer

_PACKAGES = {
    "redis-7-tls": ["redis-server", "openssl"],
    "pgbouncer": ["pgbouncer"],
    "rabbitmq": ["rabbitmq-server"],
    "mariadb": ["mariadb-server", "libmariadb-dev"],  # the second one to build mysqlclient
}
_POLICY = Path("/usr/sbin/policy-rc.d")


def main() -> None:
    servers = _servers()
    wanted = [package for server in servers if server.missing() for package in _PACKAGES.get(server.name, [])]
    if wanted and os.geteuid() == 0 and shutil.which("apt-get"):
        _install(wanted)
    for server in servers:
        print(_report(server))


def _servers() -> list[Server]:
    postgres = PostgresServer()
    return [*map(RedisServer, FLAVOURS), postgres, PgBouncer(postgres), RabbitMQServer(), MariaDBServer()]


def _report(server: Server) -> str:
    if reason := server.missing():
        return f"{server.name}: missing, its tests are skipped: {reason}"
    return f"{server.name} {binaries.version(server.binary)}: ready ({binaries.origin(server.binary)})"


def _install(packages: list[str]) -> None:
    with _no_services():
        for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
            trouble = _apt_get(command)
            if trouble:
                print(f"apt-get {command[0]}: {trouble}")


def _apt_get(arguments: list[str]) -> str:
    """Run it quietly; the last line of what went wrong, if anything did."""
    try:
        done = subprocess.run(
            ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=60", *arguments],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stdout.splitlines() or ["failed"])[-1] if done.returncode else ""


@contextmanager
def _no_services() -> Iterator[None]:
    # Debian's packages start their services unless this script forbids it. An administrator's own one is obeyed.
    try:
        with _POLICY.open("x") as file:
            file.write("#!/bin/sh\nexit 101\n")
        _POLICY.chmod(0o755)
        ours = True
    except OSError:
        ours = False
    try:
        yield
    finally:
        if ours:
            with suppress(OSError):
                _POLICY.unlink()


if __name__ == "__main__":
    main()
