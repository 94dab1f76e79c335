"""Workers and schedulers of two releases side by side; what is killed comes back as the other release."""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

import psutil

from tests.bodies import DIRECTORY, ledger_of
from tests.ledger import Ledger, Line, append
from tests.upgrade.bodies import ON_PURPOSE, effects_of, make_tables
from tests.upgrade.releases import RELEASES, ROOT, Release, Releases, other
from tests.waiting import wait_until

_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:\s.*\n)*\S.*")
_OURS = re.compile(rf'File "({re.escape(str(ROOT))}|[^"]*/old)/taskguard/')
_UP = (" ready.", "Listening on", "beat: Starting", "registering birth")
"""What a worker and a scheduler of either queue say when they have started."""
FREE_TO_RUN_AGAIN = 2.0
"""Seconds after a body's last line in which its process may not have told the store of the end yet."""


class Member:
    """One place in the fleet: a worker or a scheduler, which may be of either release in its life."""

    def __init__(self, fleet: Fleet, name: str, program: Sequence[str], release: Release) -> None:
        self.name = name
        self.release = release
        self._fleet = fleet
        self._program = program
        self._lives = 0
        self.start()

    def start(self) -> None:
        self._lives += 1
        self.log = self._fleet.directory / f"{self.name}-{self._lives}-{self.release}.log"
        self.process = self._fleet.start(self.release, self._program, self.log)

    def is_up(self) -> bool:
        said = self.log.read_text(errors="replace")
        return any(words in said for words in _UP)

    def kill(self) -> None:
        """The whole session, the parent first: it must not see its children die."""
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGSTOP)
        pids = [self.process.pid, *_session(self.process.pid)]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(20)
        wait_until(lambda: not any(map(psutil.pid_exists, _session(self.process.pid))), what=f"the end of {pids}")
        append(self._fleet.ledger.path, {"what": "killed", "pids": pids, "at": time.monotonic(), "name": self.name})

    def upgrade(self) -> None:
        self.kill()
        self.release = other(self.release)
        self.start()


class Fleet:
    def __init__(self, releases: Releases, directory: Path, environment: Mapping[str, str]) -> None:
        self.directory = directory
        self.ledger: Ledger = ledger_of(directory)
        self.members: list[Member] = []
        self._callers: list[subprocess.Popen[bytes]] = []
        self._releases = releases
        self._environment = {DIRECTORY: str(directory), **environment}
        make_tables(directory)

    def start(self, release: Release, program: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        return self._releases.start(release, program, log=log, environment=self._environment)

    def add(self, name: str, release: Release, *program: str) -> Member:
        self.members.append(Member(self, name, program, release))
        return self.members[-1]

    def start_callers(self, *program: str) -> None:
        """One of each release; both releases are at work then."""
        for member in self.members:
            wait_until(member.is_up, timeout=60, what=f"{member.name} is up")
        self._callers = [self.start(release, program, self.directory / f"caller-{release}.log") for release in RELEASES]
        for release in RELEASES:
            self.ledger.wait_for("begin", timeout=60, release=release)

    def wait_for_callers(self, timeout: float) -> None:
        for release, caller in zip(RELEASES, self._callers, strict=True):
            assert caller.wait(timeout) == 0, (self.directory / f"caller-{release}.log").read_text()[-3000:]

    def harass(self, kills: int, seed: int, between: tuple[float, float], meanwhile: Callable[[], None]) -> None:
        """Kill so many members at random moments; each starts again as the other release."""
        chance = random.Random(seed)
        for _ in range(kills):
            until = time.monotonic() + chance.uniform(*between)
            while time.monotonic() < until:
                meanwhile()
                time.sleep(0.05)
            # One that has only just begun to start has met no message.
            ups = wait_until(lambda: [member for member in self.members if member.is_up()], what="somebody is up")
            chance.choice(ups).upgrade()

    def close(self) -> None:
        for caller in self._callers:
            caller.kill()
            caller.wait(20)
        for member in self.members:
            member.kill()

    # -- what happened -------------------------------------------------------------------------------------------------

    def told(self, job: str) -> str:
        """All that any process has logged of that job, and all that its bodies did."""
        lines = [f"{log.name}: {line}" for log in self._logs() for line in _lines(log) if job in line]
        return "\n".join([*lines, *(str(line) for line in self.ledger.lines() if job in str(line))])

    def tracebacks(self) -> list[str]:
        """Those in a log that go through taskguard, but for that of a body which fails on purpose."""
        found = [f"{log.name}: {text}" for log in self._logs() for text in _TRACEBACK.findall(log.read_text())]
        return [text for text in found if _OURS.search(text) and not text.endswith(ON_PURPOSE)]

    def effects(self, kind: str) -> list[tuple[str, str, float | None]]:
        with closing(effects_of(self.directory)) as database:
            query = "SELECT key, job, slot FROM effect WHERE kind = ?"
            return [(key, job, slot) for key, job, slot in database.execute(query, (kind,)).fetchall()]

    def calls(self, kind: str) -> dict[str, set[str]]:
        """The jobs that callers were given, by key."""
        found: dict[str, set[str]] = defaultdict(set)
        for line in self.ledger.lines("called", kind=kind):
            found[line["key"]].add(line["job"])
        return found

    def bodies(self) -> dict[str, Body]:
        killed: dict[int, list[float]] = defaultdict(list)
        lines = self.ledger.lines()
        for line in lines:
            if line["what"] == "killed":
                for pid in line["pids"]:
                    killed[pid].append(line["at"])
        found: dict[str, Body] = {}
        for line in lines:
            if line["what"] == "begin":
                deaths = [at for at in killed[line["pid"]] if at > line["at"]]
                found[line["body"]] = Body(line, min(deaths, default=None))
            elif line["what"] in ("end", "failed"):
                found[line["body"]].last = line
        return found

    def _logs(self) -> list[Path]:
        return sorted(self.directory.glob("*.log"))


class Body:
    """One run of a body, and when its process was killed, if it was."""

    def __init__(self, first: Line, killed: float | None) -> None:
        self.first, self.killed = first, killed
        self.last: Line | None = None

    def __repr__(self) -> str:
        return f"{self.first} … {self.last or 'killed' if self.killed else self.last}"

    @property
    def key(self) -> tuple[str, str]:
        return self.first["kind"], self.first["key"]

    @property
    def end(self) -> float:
        return float(self.last["at"]) if self.last else self.killed or float("inf")

    @property
    def succeeded(self) -> bool:
        return self.last is not None and self.last["what"] == "end"

    @property
    def lost_its_lease(self) -> bool:
        return self.last is not None and self.last.get("error") == "LeaseLostError"

    @property
    def was_cut_off(self) -> bool:
        """Whether its process may have died before the store knew of the end."""
        return self.lost_its_lease or (self.killed is not None and self.killed - self.end < FREE_TO_RUN_AGAIN)


def overlaps(bodies: Sequence[Body]) -> list[tuple[Body, Body]]:
    """Each two bodies of a key that were at work at once, both with a lease."""
    by_key: dict[tuple[str, str], list[Body]] = defaultdict(list)
    for body in bodies:
        if not body.lost_its_lease:
            by_key[body.key].append(body)
    return [
        (one, two)
        for of_key in by_key.values()
        for one, two in itertools.combinations(of_key, 2)
        if one.first["at"] < two.end and two.first["at"] < one.end
    ]


def _lines(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()


def _session(pid: int) -> list[int]:
    """All that it has started, also what it has left behind."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            is_ours = process.pid != pid and os.getsid(process.pid) == pid
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found
