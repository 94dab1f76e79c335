"""MariaDB, with one empty database and a user that needs no password."""

from __future__ import annotations

import pwd
import shutil
from pathlib import Path

from . import binaries
from .children import NOBODY
from .ports import HOST
from .processes import Server, ServerError

DATABASE = "taskguard"
USER = "taskguard"
ATTEMPTS = 3
"""Its installer was seen to fail on a busy machine, on a table of its own that it had just made."""

_LEAN = {
    "innodb-buffer-pool-size": "32M",
    "innodb-log-file-size": "16M",
    "innodb-use-native-aio": 0,  # the kernel has only so many of these contexts for all servers of a machine
}


class MariaDBServer(Server):
    """A MariaDB server with InnoDB tables. What it acknowledged survives a crash; *durable* False trades that."""

    name = "mariadb"
    install = "install Debian's mariadb-server"
    start_within = 60.0
    stop_within = 20.0
    refuses_root = True

    def __init__(self, *, durable: bool = True) -> None:
        super().__init__()
        self.durable = durable

    def find(self) -> Path | None:
        return binaries.in_system("mariadbd")

    @property
    def url(self) -> str:
        return f"mysql://{USER}@{HOST}:{self.port}/{DATABASE}"

    @property
    def socket(self) -> Path:
        return self.directory / "socket"

    def prepare(self) -> None:
        installer = binaries.in_system("mariadb-install-db")
        user = [f"--user={pwd.getpwuid(NOBODY).pw_name}"] if self.as_nobody else []
        options = ["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
        lean = [f"--{name}={value}" for name, value in _LEAN.items()]
        command = [str(installer), *options, *user, f"--datadir={self.data}", *lean]
        for attempt in range(ATTEMPTS):
            try:
                self.run(command)
                break
            except ServerError:
                if attempt + 1 == ATTEMPTS:
                    raise
                for made in self.data.iterdir():
                    shutil.rmtree(made) if made.is_dir() else made.unlink()
        first = self.directory / "first.sql"
        # Each start says it: the file is read before the first client is served.
        first.write_text(
            f"CREATE DATABASE IF NOT EXISTS {DATABASE} CHARACTER SET utf8mb4;\n"
            f"CREATE USER IF NOT EXISTS '{USER}'@'%' IDENTIFIED BY '';\n"
            f"GRANT ALL ON *.* TO '{USER}'@'%';\n"
        )
        self.give(first)

    def command(self) -> list[str]:
        switch = "1" if self.durable else "0"
        options = {
            "datadir": self.data,
            "socket": self.socket,
            "pid-file": self.directory / "pid",
            "bind-address": HOST,
            "port": self.port,
            "init-file": self.directory / "first.sql",
            "innodb-flush-log-at-trx-commit": switch,
            "max-connections": 200,
            "skip-name-resolve": 1,
            **_LEAN,
        }
        return [str(self.binary), "--no-defaults", *(f"--{name}={value}" for name, value in options.items())]

    def ready(self, pid: int) -> bool:
        return "ready for connections" in self.log()
