"""The command line where only one extra is installed: it works without the other queue, and without any."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from taskguard.cli.main import COMMANDS
from tests.extras import ROOT, Environment, declared, described

EXTRAS = [("cli",), ("celery", "cli"), ("rq", "cli")]
NEEDS_RQ = {"rq-backfill", "rq-cron"}
EACH = """
import json, sys
from click.testing import CliRunner
from taskguard.cli.main import taskguard
for line in json.loads(sys.argv[1]):
    answer = CliRunner().invoke(taskguard, line, prog_name="taskguard")
    error = answer.exception if not isinstance(answer.exception, SystemExit) else None
    print(json.dumps({"code": answer.exit_code, "output": answer.output, "error": error and repr(error)}))
"""
"""Many commands in one process: each start of Python costs half a second."""


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Environment]:
    """One for each set of extras, made when it is first asked for."""
    made: dict[tuple[str, ...], Environment] = {}

    def find(*extras: str) -> Environment:
        if extras not in made:
            made[extras] = Environment(tmp_path_factory.mktemp("-".join(extras)), *extras)
        return made[extras]

    return find


@pytest.fixture(params=EXTRAS, ids="-".join)
def extras(request: pytest.FixtureRequest) -> tuple[str, ...]:
    found: tuple[str, ...] = request.param
    return found


@pytest.fixture
def environment(environments: Callable[..., Environment], extras: tuple[str, ...]) -> Environment:
    return environments(*extras)


def each(environment: Environment, *lines: list[str]) -> list[dict[str, Any]]:
    answer = environment.python_with("-c", EACH, json.dumps(lines))
    assert answer.returncode == 0, described(answer)
    return [json.loads(line) for line in answer.stdout.splitlines()]


def test_it_has_the_extra_and_nothing_else(environment: Environment, extras: tuple[str, ...]):
    look = "from importlib.util import find_spec as f; print(*[n for n in ('celery', 'rq', 'redis', 'pytest') if f(n)])"

    assert (
        environment.python_with("-c", look).stdout.split()
        == {
            ("cli",): [],
            ("celery", "cli"): ["celery", "redis"],
            ("rq", "cli"): ["rq", "redis"],
        }[extras]
    )


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], []], ids=["--help", "-h", "alone"])
def test_help_names_every_command(environment: Environment, arguments: list[str]):
    answer = environment.run(*arguments)

    named = {line.split()[0] for line in (answer.stdout + answer.stderr).partition("Commands:")[2].splitlines() if line}
    assert named >= set(COMMANDS), described(answer)
    assert "Traceback" not in answer.stderr


def test_every_command_has_its_help(environment: Environment):
    answers = each(environment, *[[name, flag] for name in COMMANDS for flag in ("--help", "-h")])

    assert [answer for answer in answers if answer["code"] or answer["error"] or "Usage:" not in answer["output"]] == []


def test_commands_work_on_a_store_that_needs_no_driver(environment: Environment, tmp_path: Path):
    store, database = ["--store", f"sqlite:///{tmp_path}/store.db"], f"sqlite:///{tmp_path}/own.db"
    lines: dict[str, tuple[int, list[str]]] = {
        "bench": (0, ["bench", *store, "--calls", "10"]),
        "completion": (0, ["completion", "bash"]),
        "doctor": (0, ["doctor", *store]),
        "explain": (1, ["explain", *store, "a-key"]),
        "health": (1, ["health", "beat", "--file", f"{tmp_path}/none", *store]),
        "ls": (0, ["ls", *store]),
        "migrate": (0, ["migrate", database, *store]),
        "purge": (0, ["purge", database]),
        "release": (1, ["release", *store, "a-key", "--yes"]),
        "show": (1, ["show", *store, "a-key"]),
        "stats": (0, ["stats", *store]),
        "watch": (0, ["watch", *store, "--for", "0.01"]),
    }
    assert {*lines, "backfill", "demo", *NEEDS_RQ} == set(COMMANDS)

    answers = each(environment, *[line for _, line in lines.values()])
    assert [answer["error"] for answer in answers] == [None] * len(lines)
    assert dict(zip(lines, [answer["code"] for answer in answers], strict=True)) == {
        name: code for name, (code, _) in lines.items()
    }


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_the_commands(environment: Environment, shell: str):
    line = {"COMP_LINE": "taskguard rq", "COMP_WORDBREAKS": "=:", "COMP_WORDS": "taskguard rq", "COMP_CWORD": "1"}
    if shell == "fish":
        line["COMP_CWORD"] = "rq"
    answer = environment.python_with(
        "-c", "from taskguard.cli import main; main()", _TASKGUARD_COMPLETE=f"{shell}_complete", **line
    )

    assert answer.stderr == ""
    assert "rq-cron" in answer.stdout and "rq-backfill" in answer.stdout


def test_a_command_that_needs_a_package_names_its_extra(environment: Environment, extras: tuple[str, ...]):
    moments = ["--from", "2026-11-16", "--to", "2026-11-17"]
    asked = {
        "rq": [["rq-cron", "cron.py"], ["rq-backfill", "entry", "cron.py", *moments]],
        "celery": [
            ["ls", "-A", "shop"],
            ["doctor", "-A", "shop"],
            ["health", "beat", "-A", "shop"],
            ["backfill", "entry", *moments, "-A", "shop"],
        ],
        "redis": [["ls", "--store", "redis://localhost:1"]],
        "postgresql": [["ls", "--store", "postgresql://localhost:1/none"], ["migrate", "postgresql://localhost/none"]],
        "demo": [["demo"]],
    }
    missing = {name: lines for name, lines in asked.items() if name not in extras}
    if extras[0] != "cli":
        del missing["redis"]  # which each queue brings along
    for extra, lines in missing.items():
        for line, answer in zip(lines, each(environment, *lines), strict=True):
            *usage, said = answer["output"].strip().split("\n")
            assert said.startswith("Error: ") and f"pip install 'celery-taskguard[{extra}]'" in said, (line, answer)
            assert answer["error"] is None and answer["code"] in (1, 2, 3), (line, answer)
            assert all(text.startswith(("Usage:", "Try ")) or not text for text in usage), (line, answer)


def test_without_the_extra_cli_it_is_asked_for(environments: Callable[..., Environment]):
    answer = environments("celery").run("ls")

    assert answer.returncode == 1
    assert answer.stderr.strip().splitlines() == [
        "taskguard: the command line needs one more package: pip install 'celery-taskguard[cli]'"
    ]


def test_the_extra_all_is_all_others_but_the_demo_which_brings_a_server():
    extras = declared()

    (text,) = extras["all"]
    assert Requirement(text).extras == set(extras) - {"all", "demo"}


@pytest.mark.faults
def test_each_extra_as_pip_installs_it(extras: tuple[str, ...], tmp_path: Path):
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=120)
    python = str(tmp_path / "venv" / "bin" / "python")
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    install = [python, "-m", "pip", "install", "--quiet", f"{ROOT}[{','.join(extras)}]"]
    subprocess.run(install, check=True, timeout=300, env=variables)

    for arguments in (["--help"], ["completion", "zsh"], ["ls", "--store", f"sqlite:///{tmp_path}/store.db"]):
        program = [str(tmp_path / "venv" / "bin" / "taskguard"), *arguments]
        answer = subprocess.run(program, capture_output=True, text=True, check=False, timeout=60, env=variables)
        assert answer.returncode == 0, described(answer)
