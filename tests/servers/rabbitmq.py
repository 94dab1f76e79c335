"""RabbitMQ, with a port mapper of its own: several can live side by side, and nothing outlives them."""

from __future__ import annotations

import socket
from pathlib import Path

from . import binaries
from .ports import HOST
from .processes import Server

_DEBIAN = Path("/usr/lib/rabbitmq/bin/rabbitmqctl")


class RabbitMQServer(Server):
    """A RabbitMQ node with the user guest, no plug-ins and no limits on memory or disk.

    A start takes some 5 to 10 seconds: share one among tests, and give each test queues of its own.
    """

    name = "rabbitmq"
    install = "install Debian's rabbitmq-server"
    start_within = 60.0
    stop_within = 20.0
    ports_needed = 2

    def __init__(self) -> None:
        super().__init__()
        self.mapper = PortMapper()

    def find(self) -> Path | None:
        # The control program stands for the package: unlike the server it can be asked for its version. Debian's
        # programs in /usr/sbin change to another user, and to another process.
        return _DEBIAN if _DEBIAN.exists() else None

    def missing(self) -> str | None:
        return super().missing() or self.mapper.missing()

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{HOST}:{self.port}//"

    def start(self) -> None:
        if not self.missing():
            self.mapper.start()
        super().start()

    def close(self) -> None:
        super().close()
        self.mapper.close()

    def prepare(self) -> None:
        """Nothing: the server makes its database itself."""

    def command(self) -> list[str]:
        file = self.directory / "rabbitmq.conf"
        file.write_text("\n".join(f"{name} = {value}" for name, value in self._options().items()))
        # The ports are known only now, too late for the environment of the base class.
        variables = [f"{name}={value}" for name, value in self._variables().items()]
        return ["env", *variables, str(self.binary.with_name("rabbitmq-server"))]

    def ready(self, pid: int) -> bool:
        return "Server startup complete" in self.log()

    def _options(self) -> dict[str, str]:
        return {
            "log.console": "true",
            "log.console.level": "info",
            "log.file": "false",
            "vm_memory_high_watermark.absolute": "1GB",
            "disk_free_limit.absolute": "1MB",
            "loopback_users": "none",
        }

    def _variables(self) -> dict[str, str]:
        return {
            "HOME": str(self.data),  # where the cookie goes
            "RABBITMQ_NODENAME": f"taskguard-{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._port(1)),
            "RABBITMQ_MNESIA_BASE": str(self.data),
            "RABBITMQ_LOG_BASE": str(self.data),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": str(self.directory / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "no-plugins"),
            # Erlang in the place of the start script, so that its pid is the server's; but with no shell of its own.
            "RABBITMQ_ALLOW_INPUT": "1",
            "RABBITMQ_SERVER_START_ARGS": "-noinput -start_epmd false",
            "ERL_EPMD_ADDRESS": HOST,
            "ERL_EPMD_PORT": str(self.mapper.port),
        }


class PortMapper(Server):
    """Erlang's epmd. One that a node starts by itself would be shared by all nodes, and outlive them."""

    name = "epmd"
    install = "install Debian's erlang-base"

    def find(self) -> Path | None:
        return binaries.in_system("epmd")

    def prepare(self) -> None:
        """Nothing: it keeps no data."""

    def command(self) -> list[str]:
        return [str(self.binary), "-address", HOST, "-port", str(self.port)]

    def ready(self, pid: int) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self.port)) == 0
