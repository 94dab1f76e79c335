"""A server for tests: started when needed, hurt on purpose, and never left behind.

A server owns one temporary directory and the same ports for its whole life, so that a client finds it again after a
crash. The first start picks the ports; every other start comes back on them.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from . import binaries, children
from .ports import ReservedPort

_S = TypeVar("_S", bound="Server")

_POLL = 0.005
_ATTEMPTS = 20


class ServerError(Exception):
    """A server did not do what it was told; the message ends with the last lines of its log."""


class _PortTakenError(ServerError):
    """Somebody else listens on the port."""


class Server(ABC):
    """One child process with its directory and ports. Nothing happens before `start()`."""

    name = "server"
    install = "install it"
    """What to do about a server that is missing."""
    stop_signal = signal.SIGTERM
    start_within = 15.0
    stop_within = 5.0
    refuses_root = False
    ports_needed = 1

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self.environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._directory: Path | None = None
        self._ports: list[ReservedPort] = []
        self._log_start = 0
        self._owner = 0

    # What each kind of server says about itself.

    @abstractmethod
    def find(self) -> Path | None:
        """The program of the server, if it is on this machine and can be used."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The command line that runs the server in the foreground."""

    @abstractmethod
    def ready(self, pid: int) -> bool:
        """Whether the process *pid*, and no other one on its port, serves clients."""

    @abstractmethod
    def prepare(self) -> None:
        """Fill the new, empty data directory."""

    def missing(self) -> str | None:
        """Why this server cannot be had here and what to install, or None if it can."""
        return None if self.find() else self.unobtainable() or self.install

    def unobtainable(self) -> str | None:
        """Why nothing that could be installed here would bring this server, or None if something would."""
        return None

    # What tests do with it.

    def start(self) -> None:
        """Return when the server serves clients; nothing to do if it is running."""
        if self.running:
            return
        if reason := self.missing():
            raise ServerError(f"{self.name}: {reason}")
        first = self._directory is None
        if first:
            self._settle_down()
        if not self.data.exists():
            self._make_data()
        self._launch_on_free_ports(may_move=first)

    def stop(self) -> None:
        """End the server in its own orderly way, by force if that takes too long."""
        if not self.running:
            return
        process = self._running()
        children.thaw(process)
        process.send_signal(self.stop_signal)
        try:
            process.wait(self.stop_within)
        except subprocess.TimeoutExpired:
            children.crash(process)

    def kill(self) -> None:
        """End the server as a crash would; its data stays as it is on disk."""
        if self.running:
            children.crash(self._running())

    def pause(self) -> None:
        """Freeze the server: the kernel still accepts connections and bytes, nothing answers."""
        children.freeze(self._running())

    def resume(self) -> None:
        """End `pause()`; what arrived meanwhile is served now."""
        children.thaw(self._running())

    def restart(self, wipe: bool = False) -> None:
        """Stop and start on the same ports, with the same data or with none."""
        self.stop()
        if wipe:
            shutil.rmtree(self.data)
        self.start()

    def close(self) -> None:
        """End the server for good, with its data; directory and ports are given back."""
        self.kill()
        _open_servers.discard(self)
        for port in self._ports:
            port.release()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._ports, self._directory = [], None

    def __enter__(self: _S) -> _S:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def port(self) -> int:
        """The same from the first start to `close()`."""
        return self._port(0)

    @property
    def directory(self) -> Path:
        if self._directory is None:
            raise ServerError(f"{self.name} was never started")
        return self._directory

    @property
    def data(self) -> Path:
        """What a restart keeps and a wipe loses."""
        return self.directory / "data"

    def log(self) -> str:
        """What the server printed since it was last started."""
        with suppress(FileNotFoundError), (self.directory / "log").open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")
        return ""

    # For subclasses.

    @property
    def binary(self) -> Path:
        found = self.find()
        if found is None:
            raise ServerError(f"{self.name}: {self.missing()}")
        return found

    @property
    def as_nobody(self) -> bool:
        return self.refuses_root and os.geteuid() == 0

    def run(self, command: Sequence[str], text: str = "") -> None:
        """Run a command to its end, as the user and in the directory of the server."""
        code, printed = children.run(
            command, text=text, directory=self.directory, environment=self.environment, as_nobody=self.as_nobody
        )
        if code:
            raise ServerError(f"{self.name}: {command[0]} failed\n{_tail(printed)}")

    def give(self, path: Path) -> None:
        """Make *path* belong to the user of the server."""
        if self.as_nobody:
            os.chown(path, children.NOBODY, children.NOBODY)

    def _port(self, index: int) -> int:
        if not self._ports:
            raise ServerError(f"{self.name} was never started")
        return self._ports[index].number

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise ServerError(f"{self.name} is not running")
        return self._process

    def _settle_down(self) -> None:
        parent = _temporary_directory(self.as_nobody)
        self._directory = Path(tempfile.mkdtemp(prefix=f"taskguard-{self.name}-", dir=parent))
        self.give(self._directory)
        self._owner = os.getpid()
        _open_servers.add(self)
        self._pick_ports()

    def _pick_ports(self) -> None:
        for port in self._ports:
            port.release()
        self._ports = [ReservedPort() for _ in range(self.ports_needed)]

    def _make_data(self) -> None:
        self.data.mkdir(mode=0o700)
        self.give(self.data)
        try:
            self.prepare()
        except BaseException:
            shutil.rmtree(self.data, ignore_errors=True)
            raise

    def _launch_on_free_ports(self, may_move: bool) -> None:
        for attempt in range(_ATTEMPTS):
            try:
                self._launch()
                return
            except _PortTakenError:
                if attempt == _ATTEMPTS - 1:
                    raise
                if may_move:
                    self._pick_ports()
                else:
                    time.sleep(0.1)

    def _launch(self) -> None:
        with (self.directory / "log").open("ab") as log:
            self._log_start = log.tell()
            self._process = children.spawn(
                self.command(),
                log=log,
                directory=self.directory,
                environment=self.environment,
                as_nobody=self.as_nobody,
            )
        try:
            self._await_ready(self._process)
        except BaseException:
            self.kill()
            raise

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self.start_within
        while time.monotonic() < deadline:
            if process.poll() is not None:
                kind = _PortTakenError if "ddress already in use" in self.log() else ServerError
                raise kind(f"{self.name} ended with {process.returncode} at its start\n{_tail(self.log())}")
            if self.ready(process.pid):
                return
            time.sleep(_POLL)
        raise ServerError(f"{self.name} is not ready after {self.start_within:g} s\n{_tail(self.log())}")


_open_servers: set[Server] = set()


@atexit.register
def _close_all() -> None:
    for server in list(_open_servers):
        # A fork inherits this list; the servers are its parent's.
        if server._owner == os.getpid():
            server.close()


def _temporary_directory(for_all: bool) -> Path:
    """The directory for temporary files; for a server that runs as nobody, one that nobody can enter."""
    usual = Path(tempfile.gettempdir())
    candidates = [usual, Path("/tmp"), Path("/var/tmp")] if for_all else [usual]
    return next((path for path in candidates if not for_all or binaries.open_to_all(path)), usual)


def _tail(text: str) -> str:
    lines = text.splitlines()
    # Some say what went wrong, and then at length where to ask about it.
    return "\n".join([*(line for line in lines[:-20] if "ERROR" in line), *lines[-20:]])
