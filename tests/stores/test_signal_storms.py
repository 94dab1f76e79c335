"""What a store is like after signals have raised in the middle of its verbs, or have used it there."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
import redis

from taskguard.protocol.store import Store
from taskguard.stores import open_store
from taskguard.stores.redis import RedisStore
from taskguard.stores.redis_wire import Lent
from tests.servers import RedisServer
from tests.storms import Storm, storm_of_handlers, storm_on_verbs

# By a thread: the storms need SIGALRM and its timer for themselves.
pytestmark = pytest.mark.timeout(60, method="thread")

ROOT = Path(__file__).parent.parent.parent
LONG = [
    pytest.param(3.0, id="briefly"),
    pytest.param(60.0, id="long", marks=[pytest.mark.faults, pytest.mark.timeout(300, method="thread")]),
]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


@pytest.fixture(params=["memory", "sqlite", "redis", "lent redis", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "lent redis":
        url = request.getfixturevalue("redis_server").url
        with closing(redis.Redis.from_url(url, max_connections=2)) as client:
            yield RedisStore(client, namespace=uuid4().hex)
        return
    server = {"redis": "redis_server", "postgresql": "postgres_server"}.get(request.param)
    if server:
        url = request.getfixturevalue(server).url
    else:
        url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/taskguard.db"
    with closing(open_store(url, namespace=uuid4().hex)) as store:
        yield store


@pytest.mark.parametrize("seconds", LONG)
@pytest.mark.parametrize("several", [False, True], ids=["one signal", "several signals"])
def test_after_a_signal_has_raised_in_a_verb_every_verb_works_at_once_and_gets_its_own_answer(
    store: Store, several: bool, seconds: float
):
    storm_on_verbs(store, seconds=seconds, several=several)


@pytest.mark.parametrize("seconds", LONG)
@pytest.mark.parametrize("several", [False, True], ids=["one signal", "several signals"])
def test_a_signal_handler_can_use_the_store_in_the_middle_of_a_verb(store: Store, several: bool, seconds: float):
    storm_of_handlers(store, seconds=seconds, several=several)


@pytest.mark.parametrize("signals", ["one", "several"])
@pytest.mark.parametrize("storm", ["verbs", "handlers"])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("version", PYTHONS)
def test_storms_pass_on_every_python(version: str, kind: str, storm: str, signals: str):
    command = [interpreter(version), "-m", "tests.storms", kind, storm, "1.5", signals]
    subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, check=True, timeout=60)


def interpreter(version: str) -> str:
    if sys.version.startswith(f"{version}."):
        return sys.executable
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    found = str(installed[-1]) if installed else shutil.which(f"python{version}")
    if not found:
        pytest.skip(f"Python {version} is not installed")
    return found


def test_signals_take_no_connection_away_from_a_client_that_was_lent(redis_server: RedisServer):
    with closing(redis.Redis.from_url(redis_server.url, max_connections=1)) as client:
        store = RedisStore(client, namespace=uuid4().hex)
        name = uuid4().hex
        with Storm(several=True) as storm:
            for number in storm.rounds(3):
                storm.strike(lambda: store.get("key"))
                client.set(name, number)
                assert client.get(name) == str(number).encode()
        store.close()


def test_what_shares_the_pool_of_a_client_takes_one_connection_away_at_most(redis_server: RedisServer):
    # A signal inside the driver may lose the one that was just taken. After that none is taken any more.
    with Storm(several=True) as storm:
        for _ in storm.rounds(3):
            with closing(redis.Redis.from_url(redis_server.url)) as client:
                pool = client.connection_pool
                store = RedisStore(Lent(pool, shares=True), namespace=uuid4().hex)
                for _ in range(5):
                    storm.strike(lambda store=store: store.get("key"))
                    assert store.get("key") is None
                store.close()
                assert pool._created_connections - len(pool._available_connections) <= 1
