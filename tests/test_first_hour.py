"""What a stranger does first: each command of the README as it is written, in an environment that has nothing else.

The distribution is the built wheel, which pip finds by PIP_FIND_LINKS. Runs on the oldest and the newest Python found.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.servers import RedisServer, require
from tests.waiting import wait_until

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
INSTALLS = sorted({line.partition("#")[0].strip() for line in re.findall(r"^pip install .*$", README, re.M)})
CODE = re.findall(r"^```python\n(.*?)^```", README, re.S | re.M)

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]


def pythons() -> list[str]:
    """The oldest and the newest that pyenv has, else the one that runs this."""
    found = sorted(Path.home().glob(".pyenv/versions/3.*/bin/python"), key=lambda path: _version(path.parts[-3]))
    supported = [str(path) for path in found if (3, 10) <= _version(path.parts[-3])[:2] <= (3, 13)]
    return [supported[0], supported[-1]] if supported else [sys.executable]


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*command, str(ROOT)], check=True, timeout=100)
    return folder


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with require("valkey") as server:
        yield server


class Shell:
    """A directory with a virtual environment, in which commands are typed."""

    def __init__(self, folder: Path, python: str, wheels: Path) -> None:
        self.folder = folder
        subprocess.run([python, "-m", "venv", str(folder / "venv")], check=True, timeout=120)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TASKGUARD", "CI"))}
        path = f"{folder / 'venv' / 'bin'}:{kept['PATH']}"
        self.variables: Mapping[str, str] = {**kept, "PATH": path, "PIP_FIND_LINKS": str(wheels), "PIP_QUIET": "1"}

    def type(self, command: str, timeout: float = 300) -> str:
        done = subprocess.run(
            [str(self.folder / "venv" / "bin" / shlex.split(command)[0]), *shlex.split(command)[1:]],
            cwd=self.folder, env=self.variables, capture_output=True, text=True, check=False, timeout=timeout,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def running(self, command: str) -> Iterator[Path]:
        """The command in another terminal; what it prints is in that file."""
        log = self.folder / "worker.log"
        program, *arguments = shlex.split(command)
        with log.open("w") as output:
            process = subprocess.Popen(
                [str(self.folder / "venv" / "bin" / program), *arguments],
                cwd=self.folder, env=self.variables, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
            try:
                yield log
            finally:
                process.terminate()
                process.wait(60)


@pytest.mark.parametrize("python", pythons())
@pytest.mark.parametrize("command", INSTALLS)
def test_each_install_line(command: str, python: str, wheels: Path, tmp_path: Path):
    shell = Shell(tmp_path, python, wheels)
    shell.type(command)

    assert shell.type("python -c 'import taskguard; print(taskguard.__version__)'").strip() == "0.1.0"
    if "cli" in command or "all" in command or "demo" in command:
        assert "Usage" in shell.type("taskguard --help")
        assert "No " in shell.type("taskguard ls --store sqlite:///store.db")


@pytest.mark.parametrize("python", pythons())
def test_the_first_guarded_task(python: str, server: RedisServer, wheels: Path, tmp_path: Path):
    shell = Shell(tmp_path, python, wheels)
    began = time.monotonic()
    shell.type("pip install 'celery-taskguard[celery,cli]'")
    installed = time.monotonic()
    (tmp_path / "shop.py").write_text(CODE[0].replace("redis://localhost", server.url).replace("sleep(20)", "sleep(3)"))
    session = (
        "from shop import build_report\n"
        "first, second = build_report.delay(7, '2026-11'), build_report.delay(7, '2026-11')\n"
        "assert second.id == first.id\n"
        "import subprocess; print(subprocess.check_output(['taskguard', 'ls', '-A', 'shop'], text=True))\n"
        "print(second.get(timeout=60))\n"
    )
    (tmp_path / "session.py").write_text(session)

    with shell.running("celery -A shop worker") as log:
        wait_until(lambda: " ready." in log.read_text(), timeout=60)
        answer = shell.type("python session.py")
    print(f"installed after {installed - began:.0f} s, first result after {time.monotonic() - began:.0f} s")

    assert "shop.build_report" in answer
    assert "report of 7 for 2026-11" in answer


@pytest.mark.parametrize("python", pythons())
def test_the_first_guarded_job_of_rq(python: str, server: RedisServer, wheels: Path, tmp_path: Path):
    shell = Shell(tmp_path, python, wheels)
    began = time.monotonic()
    shell.type("pip install 'celery-taskguard[rq,cli]'")
    (tmp_path / "reports.py").write_text(CODE[1].replace("Redis()", f'Redis.from_url("{server.url}")'))
    session = (
        "import time\n"
        "from reports import build_report\n"
        "first, second = build_report.delay(7, '2026-11'), build_report.delay(7, '2026-11')\n"
        "assert second.id == first.id and second.taskguard.duplicate\n"
        "while second.return_value() is None: time.sleep(0.1)\n"
        "print(second.return_value())\n"
    )
    (tmp_path / "session.py").write_text(session)

    with shell.running(f"rq worker --url {server.url} --worker-class taskguard.rq.GuardedWorker default"):
        answer = shell.type("python session.py", timeout=60)
    print(f"first result after {time.monotonic() - began:.0f} s")

    assert "report of 7 for 2026-11" in answer
