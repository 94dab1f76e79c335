"""The command line as a whole: help, exit codes, what an error looks like."""

from __future__ import annotations

import subprocess
import sys


def taskguard(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "taskguard.cli", *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def test_help_names_what_it_is_for() -> None:
    answer = taskguard("--help")
    assert answer.returncode == 0
    assert "happens once" in answer.stdout


def test_an_unknown_command_is_a_wrong_use() -> None:
    answer = taskguard("no-such-command")
    assert answer.returncode == 2
    assert "no-such-command" in answer.stderr


def test_the_version_is_the_package_s() -> None:
    import taskguard as package

    assert package.__version__ in taskguard("--version").stdout
