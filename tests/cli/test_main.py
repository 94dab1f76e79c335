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
    assert "Run background work once" in answer.stdout


def test_an_unknown_command_is_a_wrong_use() -> None:
    answer = taskguard("no-such-command")
    assert answer.returncode == 2
    assert "no-such-command" in answer.stderr


def test_the_version_is_the_package_s() -> None:
    import taskguard as package

    assert package.__version__ in taskguard("--version").stdout


def test_a_package_that_celery_does_not_bring_is_asked_for() -> None:
    hidden = (
        "import sys; sys.modules['rich'] = None; sys.argv = ['taskguard', 'ls']; import taskguard.cli as c; c.main()"
    )
    answer = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, check=False, timeout=60)

    assert answer.returncode == 1
    assert answer.stderr.strip().endswith("pip install 'celery-taskguard[cli]'")
    assert "Traceback" not in answer.stderr


def test_a_driver_that_is_not_installed_is_named() -> None:
    answer = taskguard("migrate", "postgresql+pg8000://user:secret@localhost/shop")

    assert answer.returncode == 2
    assert answer.stderr.strip() == (
        "Error: postgresql+pg8000://localhost/shop needs the package pg8000, which is not installed"
    )
