"""What we use of the queues and their drivers that these may change without notice: listed, and there."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

import taskguard.celery.internals
import taskguard.rq.internals
from taskguard.runtime.internals import Used, missing_of

ROOT = Path(__file__).parents[2]
LISTS: dict[str, ModuleType] = {"celery": taskguard.celery.internals, "rq": taskguard.rq.internals}
DRIVERS = (("redis.connection:Connection", "_sock", "whether the server hung up, without a round trip"),)
PYTHON = {"os._exit", "sys._getframe"}
TUPLES = {"_replace", "_fields"}
"""What named tuples have, and document."""
THEIRS = ("billiard", "celery", "django_celery_beat", "kombu", "redbeat", "redis", "rq")

both_queues = pytest.mark.parametrize("queue", LISTS)


# -- the installed versions have them ----------------------------------------------------------------------------------


def is_expected(used: Used) -> bool:
    """Whether the installed version should have it."""
    package = used[0].partition(":")[0].partition(".")[0]
    installed = numbers(version({"redbeat": "celery-redbeat"}.get(package, package)))
    only = used[3] if len(used) > 3 else ">=0"
    assert re.fullmatch(r"(>=|<)[\d.]+", only)
    return installed < numbers(only) if only.startswith("<") else installed >= numbers(only)


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in [*re.findall(r"\d+", text), "0"][:2])


@pytest.mark.parametrize(
    "used",
    [*taskguard.celery.internals.ALL, *taskguard.rq.internals.ALL, *DRIVERS],
    ids=lambda used: f"{used[0]}-{used[1].replace(' ', '-')}",
)
def test_the_installed_version_has_each_name(used: Used):
    if used[0].startswith("django"):
        from tests import django_project

        django_project.configure()
    if is_expected(used):
        assert not missing_of(used)
    assert used[2]


@pytest.mark.parametrize("queue", LISTS)
def test_the_versions_that_a_message_names_are_those_that_the_extra_allows(queue: str):
    found = re.search(rf'^{queue} = \["{queue}(?:\[redis\])?>=([\d.]+),<([\d.]+)"', project(), re.MULTILINE)
    assert found is not None
    lowest, highest = LISTS[queue].TESTED[queue].split(" to ")

    assert lowest == found[1]
    assert numbers(found[2]) == (numbers(highest)[0], numbers(highest)[1] + 1)


def project() -> str:
    return (ROOT / "pyproject.toml").read_text()


# -- all that is used is listed ----------------------------------------------------------------------------------------


def listed(queue: str) -> set[str]:
    return {name for used in LISTS[queue].ALL for name in used[1].split()}


def sources(queue: str) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((ROOT / "taskguard" / queue).glob("*.py")):
        if path.name != "internals.py":
            yield path.name, ast.parse(path.read_text())


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def own_names(tree: ast.Module) -> set[str]:
    """Private names that the file gives to something of its own."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "_taskguard" in node.value:
            found.add(node.value)
    return found


def foreign_names(tree: ast.Module) -> Iterator[str]:
    """Private names of others that a file uses: imported, asked of an object, or written as a string."""
    own = own_names(tree)
    slots = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__"
        for name in ast.literal_eval(node.value)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in THEIRS:
            parts = [*str(node.module).split("."), *(alias.name for alias in node.names)]
            yield from (part for part in parts if is_private(part))
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            asked = ast.unparse(node.value)
            if f"{asked}.{node.attr}" in PYTHON or node.attr in TUPLES:
                continue
            if asked == "super()" or (node.attr not in own and node.attr not in slots):
                yield node.attr
        elif isinstance(node, ast.Constant) and is_private_word(node.value) and node.value not in own | slots:
            yield str(node.value)


def is_private_word(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"_[a-z]\w*", value) is not None


def test_private_names_of_others_are_told_from_our_own():
    program = """
from rq._private import _imported
from taskguard.rq.own import _ours
_LOOK = "_by_string"
class Ours(Base):
    _assigned = None
    def _method(self):
        self._inherited, self._assigned, self._method()
        super()._method()
        envelope._replace(name=other._asked)
"""
    found = {"_private", "_imported", "_by_string", "_inherited", "_method", "_asked"}

    assert set(foreign_names(ast.parse(program))) == found


@both_queues
def test_no_private_name_is_used_that_is_not_listed(queue: str):
    unknown = {(file, name) for file, tree in sources(queue) for name in foreign_names(tree)}

    assert not {(file, name) for file, name in unknown if name not in listed(queue)}


@both_queues
def test_no_private_name_is_listed_that_is_not_used(queue: str):
    text = "\n".join(path.read_text() for path in (ROOT / "taskguard" / queue).glob("*.py"))
    private = {name for name in listed(queue) if is_private(name)}

    # Once in the list, and at least once elsewhere, or where the list imports it.
    assert not {name for name in private if len(re.findall(rf"\b{name}\b", text)) < 2}


def our_classes(queue: str) -> Iterator[type]:
    package = importlib.import_module(f"taskguard.{queue}")
    for found in pkgutil.iter_modules(package.__path__):
        if found.name == "django":
            continue  # it needs django-rq's settings, and overrides nothing
        module = importlib.import_module(f"taskguard.{queue}.{found.name}")
        yield from (
            kind for kind in vars(module).values() if inspect.isclass(kind) and kind.__module__ == module.__name__
        )


def their_bases(kind: type) -> list[type]:
    if kind.__name__ == "SettlingRequest":  # which is put in front of any request class
        from celery.worker.request import Request

        return [Request]
    return [base for base in kind.__mro__ if base.__module__.partition(".")[0] in THEIRS]


def names_of(kind: type) -> set[str]:
    """What a class has, and what its instances are given."""
    found = set(vars(kind))
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except OSError:  # made by a function: it has nothing of its own
        return found
    for node in ast.walk(ast.parse(source)):
        is_stored = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if is_stored and ast.unparse(node.value) == "self":  # type: ignore[attr-defined]
            found.add(node.attr)  # type: ignore[attr-defined]
    return found


@both_queues
def test_what_our_classes_override_is_listed(queue: str):
    # A method that the queue no longer calls guards nothing; and a name that we took by accident breaks the queue.
    taken = {
        (kind.__name__, name)
        for kind in our_classes(queue)
        for base in their_bases(kind)
        for name in names_of(kind) & names_of(base)
        if not name.startswith("__")
    }

    assert taken
    assert not {(kind, name) for kind, name in taken if name not in listed(queue)}


# -- a version without one of them -------------------------------------------------------------------------------------


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60)


@pytest.mark.parametrize(
    ("program", "name", "package"),
    [
        ("import rq.job; del rq.job.Job._execute; import taskguard.rq.delivery", "rq.job.Job._execute", "rq"),
        (
            "import rq.worker; del rq.worker.BaseWorker.perform_job; from taskguard.rq import GuardedWorker",
            "rq.worker.BaseWorker.perform_job",
            "rq",
        ),
        (
            "import rq.cron; del rq.cron.CronScheduler._request_stop; from taskguard.rq import GuardedCronScheduler",
            "rq.cron.CronScheduler._request_stop",
            "rq",
        ),
        (
            "import celery; celery.Celery; from celery.app.base import Celery; del Celery._task_from_fun; "
            "import taskguard.celery",
            "celery.app.base.Celery._task_from_fun",
            "celery",
        ),
        (
            "import celery._state; del celery._state._get_active_apps; import taskguard.celery",
            "celery._state._get_active_apps",
            "celery",
        ),
        (
            "import celery.worker.request as r; del r.Request._announce_revoked; import taskguard.celery.request",
            "celery.worker.request.Request._announce_revoked",
            "celery",
        ),
    ],
)
def test_a_version_without_a_name_is_an_error_that_says_so(program: str, name: str, package: str):
    done = run(program)
    last = done.stderr.strip().splitlines()[-1]

    assert done.returncode == 1
    assert last.startswith("taskguard.errors.ConfigurationError: taskguard needs ")
    assert f"needs {name} (" in last and f"which {package} {version(package)} does not have" in last
    assert f"tested with {package} {LISTS[package].TESTED[package]}" in last


@pytest.mark.parametrize(
    "program",
    [
        "import rq.worker; del rq.worker.BaseWorker.perform_job; from taskguard.rq import GuardedQueue, singleton_task",
        "import rq.job; vars(rq.job).pop('_job_stack', None); from taskguard.rq import GuardedWorker",
        "import celery.worker.request as r; del r.Request._announce_revoked; from taskguard.celery import install",
        "import kombu.transport.redis as r; del r.Channel._q_for_pri; import taskguard.celery.rescue_step",
    ],
)
def test_a_process_asks_only_for_what_it_uses(program: str):
    done = run(program)

    assert done.returncode == 0, done.stderr


class Theirs:
    def __init__(self) -> None:
        self._given = 1


class Derived(Theirs):
    pass


def test_names_that_instances_have_are_found_too():
    used = (f"{__name__}:Derived", "_given _missing", "a test")

    assert missing_of(used) == [f"{__name__}.Derived._missing"]
