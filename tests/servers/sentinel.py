"""Redis Sentinel: it says which server is the master of a name."""

from __future__ import annotations

import socket
from pathlib import Path

from . import binaries
from .ports import HOST
from .processes import Server
from .redis import RedisServer

MASTER = "broker"


class SentinelServer(Server):
    """One Sentinel that watches *master* under the name `MASTER`."""

    name = "sentinel"
    install = "install Debian's redis-server"

    def __init__(self, master: RedisServer) -> None:
        super().__init__()
        self.master = master

    def find(self) -> Path | None:
        return binaries.in_system("redis-server")

    @property
    def url(self) -> str:
        """As kombu writes it."""
        return f"sentinel://{HOST}:{self.port}/0"

    def prepare(self) -> None:
        """Nothing: it keeps what it knows in its configuration."""

    def command(self) -> list[str]:
        file = self.directory / "sentinel.conf"
        watch = f"sentinel monitor {MASTER} {HOST} {self.master.port} 1"
        file.write_text(f"bind {HOST}\nport {self.port}\ndir {self.data}\n{watch}\n")
        return [str(self.binary), str(file), "--sentinel"]

    def ready(self, pid: int) -> bool:
        # It knows no QUIT, so each answer is read for itself.
        facts = {
            f"SENTINEL get-master-addr-by-name {MASTER}": f"{self.master.port}",
            "INFO server": f"process_id:{pid}",
        }
        try:
            with socket.create_connection((HOST, self.port), timeout=0.25) as connection:
                return all(_ask(connection, command).find(fact.encode()) >= 0 for command, fact in facts.items())
        except OSError:
            return False


def _ask(connection: socket.socket, command: str) -> bytes:
    connection.sendall(f"{command}\r\n".encode())
    return connection.recv(65536)
