"""What an import brings along, and what it costs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

DRIVERS = {"celery", "kombu", "rq", "redis", "valkey", "psycopg", "psycopg_pool", "sqlite3", "pydantic", "gevent"}
CORE = (
    "protocol.store",
    "protocol.rules",
    "protocol.policy",
    "keys.maker",
    "guard",
    "schedule",
    "engine.worker",
    "runtime.heartbeat",
)


def run(program: str) -> object:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("statement", ["from taskguard import *", *(f"import taskguard.{name}" for name in CORE)])
def test_the_core_imports_no_driver_and_no_queue(statement: str):
    loaded = run(f"import json, sys; {statement}; print(json.dumps(list(sys.modules)))")

    assert isinstance(loaded, list)
    assert DRIVERS.isdisjoint(name.partition(".")[0] for name in loaded)


def test_the_import_takes_less_than_30_ms_of_the_processor():
    # Processor time, and the best of a few: the machine may be busy with something else.
    program = (
        "import json, time; before = time.process_time(); import taskguard; "
        "print(json.dumps(time.process_time() - before))"
    )
    assert min(run(program) for _ in range(10)) < 0.030  # type: ignore[type-var, operator]


def test_only_open_store_knows_which_stores_there_are():
    loaded = run("import json, sys, taskguard.stores; print(json.dumps(list(sys.modules)))")

    assert isinstance(loaded, list)
    assert not [name for name in loaded if name.startswith("taskguard.stores.")]
