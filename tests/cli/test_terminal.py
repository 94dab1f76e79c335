"""What people see: questions, live tables, colours; and what a shell needs."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from taskguard import Guard
from taskguard.cli.holders import Holders
from taskguard.cli.target import Target
from taskguard.cli.watch import Watched
from taskguard.protocol.store import Claim
from tests.cli.conftest import Run
from tests.cli.terminal import Terminal
from tests.drivers import without_psycopg
from tests.servers import RedisServer, require
from tests.waiting import wait_until


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path / 'taskguard.db'}?timeout=20"
    monkeypatch.setenv("TASKGUARD_STORE", url)
    return url


def test_release_asks_and_does_nothing_if_the_answer_is_no(url: str):
    guard = Guard(url)
    with guard.hold("key") as fence, closing(Terminal("release", "key")) as terminal:
        terminal.wait_for("Release it? [y/N]:")
        assert "LeaseLostError interrupts its body" in " ".join(terminal.shown.split())
        terminal.type("n\n")

        assert terminal.end() == 1
        fence.check()


def test_release_asks_and_frees_the_key_if_the_answer_is_yes(url: str):
    guard = Guard(url)
    with closing(Terminal("release", "key")) as terminal, guard.hold("key", on_lost="continue") as fence:
        terminal.wait_for("Release it? [y/N]:")
        terminal.type("y\n")

        assert terminal.end() == 0
        assert "key is free" in terminal.shown
        entry = guard.store.get("key")
        assert entry is not None and entry.state == "free" and entry.token == fence.token


def test_release_queued_asks_once_for_all(url: str):
    guard = Guard(url)
    for number in range(3):
        guard.ask(Claim(f"shop.charge:1:{number:032}", f"job-{number}", "", state="queued", lease=60, keep_for=60))
    with closing(Terminal("release", "--queued")) as terminal:
        terminal.wait_for("Release these 3 keys? [y/N]:")
        assert "shop.charge: 3 queued" in terminal.shown
        terminal.type("y\n")

        assert terminal.end() == 0
    assert [entry.state for entry in guard.store.scan("shop.")] == ["free"] * 3


def test_watch_shows_who_holds_what_until_it_is_told_to_end(url: str):
    guard = Guard(url)
    with closing(Terminal("watch", "--interval", "0.1")) as terminal, guard.hold("a-key"):
        terminal.wait_for("a-key")
        terminal.wait_for("started")
        terminal.type("\x03")

        assert terminal.end() == 0


def test_watch_shows_the_newest_in_a_low_terminal_and_gives_the_cursor_back(url: str):
    guard = Guard(url)
    for number in range(30):
        guard.run(f"key-{number}", int, keep_for=60)
    guard.close()
    with closing(Terminal("watch", environment={"LINES": "12"})) as terminal:
        terminal.wait_for("key-29")
        terminal.signal(signal.SIGTERM)

        assert terminal.end() == 143
        assert terminal.raw.rindex("\x1b[?25h") > terminal.raw.rindex("\x1b[?25l")


def test_watch_shows_all_that_is_decided_after_its_first_look(url: str):
    guard = Guard(url)
    watched = Watched(Target(guard.store, url), "*")
    assert watched.new() == []
    for number in range(20):
        guard.run(f"key-{number}", int, keep_for=60)
    guard.close()

    assert len(watched.new()) == 40


def test_watch_finds_a_holder_among_many_that_are_done(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("taskguard.cli.holders.AT_ONCE", 10)
    guard = Guard(url, history=False)
    for number in range(40):
        guard.run(f"done-{number}", lambda: None, keep_for=60)
    holders = Holders(guard.store, "*")
    with guard.hold("z-held"):
        assert not holders.oldest(5) and not holders.is_whole  # it has not come so far, and says so
        assert [entry.key for entry in holders.oldest(5, ["z-held"])] == ["z-held"]
        wait_until(lambda: [entry.key for entry in holders.oldest(5)] == ["z-held"] and holders.is_whole)
    assert not holders.oldest(5)


def test_a_narrow_terminal_shows_the_whole_key(url: str):
    guard = Guard(url)
    key = "some.module.of.the.shop.charge:1:" + "0123456789abcdef" * 2
    with guard.hold(key), closing(Terminal("ls", environment={"COLUMNS": "60"})) as terminal:
        assert terminal.end() == 0
        assert max(map(len, terminal.shown.splitlines())) <= 60
        cells = "".join(line[13:] for line in terminal.shown.splitlines())
        assert key[:20] in cells


def test_there_are_colours_in_a_terminal_and_none_elsewhere(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TASKGUARD_STORE", "memory://")
    with closing(Terminal("doctor")) as terminal:
        assert terminal.end() == 1
        assert "\x1b[31m" in terminal.raw
    assert "\x1b" not in run("doctor").output
    with closing(Terminal("doctor", environment={"NO_COLOR": "1"})) as terminal:
        assert terminal.end() == 1
        assert "\x1b[31m" not in terminal.raw


def test_in_a_narrow_terminal_a_count_is_still_of_a_task(url: str):
    guard = Guard(url)
    guard.run("some.module.of.the.shop.charge:1:" + "0" * 32, int, keep_for=60)
    guard.close()
    with closing(Terminal("stats", environment={"COLUMNS": "40"})) as terminal:
        assert terminal.end() == 0
        assert ["TASK", "STARTS", "DONE"] in [line.split() for line in terminal.shown.splitlines()]
        assert max(map(len, terminal.shown.splitlines())) <= 40


def test_a_command_that_is_interrupted_says_so_by_its_exit_code(url: str):
    with closing(Terminal("bench", "--calls", "10000", "--seconds", "50")) as terminal:
        wait_until(lambda: Path(url[len("sqlite:///") :].partition("?")[0]).exists())
        terminal.type("\x03")

        assert terminal.end() == 130


# -- errors, secrets, shells -------------------------------------------------------------------------------------


@pytest.fixture
def locked_server() -> Iterator[RedisServer]:
    flavour = "redis-8" if RedisServer("valkey").missing() else "valkey"
    with closing(require(flavour, password="very-secret")) as server:
        yield server


def test_no_secret_is_shown(locked_server: RedisServer, run: Run):
    with_user = locked_server.url.replace("://:", "://default:")
    for arguments in (("ls",), ("bench", "--calls", "10"), ("doctor",), ("doctor", "--json")):
        result = run(*arguments, "--store", with_user)
        assert result.exit_code in (0, 1)
        assert "very-secret" not in result.output


def test_a_wrong_password_is_exit_code_3_and_not_shown(locked_server: RedisServer, run: Run):
    result = run("ls", "--store", locked_server.url.replace("very-secret", "another-secret"))

    assert result.exit_code == 3
    assert "another-secret" not in result.output


def test_a_store_that_cannot_be_asked_is_exit_code_3(run: Run):
    for command in (("ls",), ("show", "x"), ("explain", "x"), ("release", "x", "--yes"), ("stats",), ("doctor",)):
        assert run(*command, "--store", "redis://127.0.0.1:1/0?timeout=1").exit_code == 3


def test_no_store_is_a_wrong_use(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TASKGUARD_STORE", raising=False)
    result = run("ls")

    assert result.exit_code == 2
    assert "Write --store URL or -A APP, or set TASKGUARD_STORE" in result.output


def test_an_app_that_is_not_there_is_a_wrong_use(run: Run):
    result = run("ls", "-A", "no_such_module")

    assert result.exit_code == 2
    assert "no_such_module" in result.output


@pytest.mark.parametrize("text", ["raise RuntimeError('no')", "raise SystemExit(0)", "def (:", "app = 3"])
def test_an_app_that_cannot_be_loaded_is_a_wrong_use(run: Run, tmp_path: Path, monkeypatch: Any, text: str):
    name = f"broken_{uuid4().hex[:8]}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    for spelling in (name, ":", "..."):
        result = run("ls", "-A", spelling)
        assert (result.exit_code, isinstance(result.exception, SystemExit)) == (2, True)
        assert f"cannot load the Celery app {spelling}: " in result.output


def test_the_store_of_an_app_that_is_named_is_its_own(run: Run, tmp_path: Path, monkeypatch: Any):
    name = f"named_{uuid4().hex[:8]}"
    url = f"sqlite:///{tmp_path / 'of-the-app.db'}"
    (tmp_path / f"{name}.py").write_text(
        f"from celery import Celery\napp = Celery('named', broker='memory://')\n"
        f"app.conf.update(taskguard_store={url!r}, taskguard_namespace='its-own')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TASKGUARD_STORE", "memory://")
    monkeypatch.setenv("TASKGUARD_NAMESPACE", "another")
    with Guard(url, namespace="its-own").hold("invoice"):
        assert "invoice" in run("ls", "-A", name).output
        assert "invoice" not in run("ls", "-A", name, "--store", "memory://").output


@pytest.mark.parametrize("command", ["ls", "doctor"])
def test_an_app_whose_store_lacks_its_driver_is_told_what_to_install(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
):
    name = f"poor_{uuid4().hex[:8]}"
    (tmp_path / f"{name}.py").write_text(
        "from celery import Celery\napp = Celery('poor', broker='memory://')\n"
        "app.conf.taskguard_store = 'postgresql://127.0.0.1/taskguard'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    without_psycopg(monkeypatch)
    result = run(command, "-A", name)

    assert result.exit_code != 0 and "pip install 'celery-taskguard[postgresql]'" in result.output


def test_a_call_is_found_by_the_arguments_that_its_key_is_made_of(run: Run, tmp_path: Path, monkeypatch: Any):
    name = f"keyed_{uuid4().hex[:8]}"
    url = f"sqlite:///{tmp_path / 'of-the-app.db'}"
    (tmp_path / f"{name}.py").write_text(
        f"from celery import Celery\nfrom taskguard.celery import singleton_task\n"
        f"app = Celery('keyed', broker='memory://', set_as_current=False)\napp.conf.taskguard_store = {url!r}\n"
        f"@singleton_task(app, shared=False, name='charge', key='order')\ndef charge(order, cents): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    charge = importlib.import_module(name).charge
    charge.delay(42, 500)

    assert charge.taskguard.get(42).owner == charge.taskguard.get(42, 500).owner
    assert run("show", "-A", name, "charge", "42").exit_code == 0
    assert "queued" in run("explain", "-A", name, "charge", "order=42").stdout
    assert run("release", "-A", name, "charge", "42", "--yes").exit_code == 0


def test_every_command_helps_and_speaks_json(run: Run):
    from taskguard.cli.main import COMMANDS

    for name in COMMANDS:
        help_text = run(name, "--help").output
        assert "Usage: taskguard" in help_text
        ours = ("bench", "doctor", "explain", "ls", "release", "show", "stats", "watch")
        assert "--json" in help_text or name not in ours


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completion(run: Run, shell: str):
    result = run("completion", shell)

    assert result.exit_code == 0
    assert "_TASKGUARD_COMPLETE" in result.stdout


IN_BASH = """
taskguard() { "$PYTHON" -m taskguard.cli "$@"; }
eval "$(taskguard completion bash)"
COMP_LINE="$1" COMP_POINT=${#1}
_taskguard_completion taskguard
[ ${#COMPREPLY[@]} = 0 ] || printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_commands_and_keys_are_completed_in_bash_which_breaks_words_at_colons(url: str):
    def completed(line: str) -> list[str]:
        environment = {**os.environ, "PYTHON": sys.executable}
        command = ["bash", "--norc", "-c", IN_BASH, "bash", line]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
        return done.stdout.splitlines()

    key = "shop.charge:1:" + "8f0c" * 8
    guard = Guard(url)
    with guard.hold(key), guard.hold("rm -r $(pwd)"):
        assert completed("taskguard exp") == ["explain"]
        assert completed("taskguard show sho") == [key]
        # What bash takes for the word is what stands behind the last colon.
        assert completed("taskguard show shop.charge:1:8f") == ["8f0c" * 8]
        assert completed(f"taskguard show --store {url.partition('?')[0]} shop.charge:") == [f"1:{'8f0c' * 8}"]
        assert completed("taskguard show rm") == [r"rm\ -r\ \$\(pwd\)"]  # it must not be run when it is typed


def test_a_command_whose_reader_has_gone_ends_quietly(url: str):
    guard = Guard(url)
    with guard.hold("key"):
        done = subprocess.run(
            f"{sys.executable} -m taskguard.cli ls --json | head -c 1",
            shell=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_watch_ends_quietly_when_it_is_interrupted(url: str):
    with Guard(url).hold("key"):
        process = subprocess.Popen(
            [sys.executable, "-m", "taskguard.cli", "watch"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None and "key" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)

    assert (process.returncode, errors) == (0, "")
