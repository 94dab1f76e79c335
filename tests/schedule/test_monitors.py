"""What monitors see of a guarded beat: a log line for each slot, and what they wrap, as Sentry does."""

from __future__ import annotations

import gzip
import json
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery.beat import Scheduler

from taskguard import open_store
from taskguard.schedule.keeper import Timekeeper
from tests.schedule.deployment import Deployment, deployed
from tests.schedule.test_beat import Hall, every, in_memory
from tests.servers import RedisServer
from tests.waiting import wait_until

HOUR = 3600


# -- what wraps a scheduler, tick by tick ------------------------------------------------------------------------------


@pytest.fixture(params=["taskguard", "taskguard_redbeat"])
def hall(request: pytest.FixtureRequest) -> Hall:
    entries = {"a": every(10, options={"overlap": "allow_all"})}
    if request.param == "taskguard":
        return Hall(in_memory, beat_schedule=entries)
    from taskguard.celery import beat

    return Hall(beat.GuardedRedBeatScheduler, beat_schedule=entries, **redbeat(request.getfixturevalue("redis_server")))


def redbeat(server: RedisServer) -> dict[str, Any]:
    return {"redbeat_redis_url": server.url, "redbeat_redis_options": {}, "redbeat_key_prefix": f"{uuid4().hex}:"}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The entries that a monitor was told of, which wraps what Sentry does, and numbers messages by a header."""
    from redbeat import RedBeatScheduler

    names: list[str] = []

    def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            _, entry = args
            names.append(entry.name)
            entry.options["headers"] = {**entry.options.get("headers", {}), "monitor": len(names)}
            return original(*args, **options)

        return call

    monkeypatch.setattr(Scheduler, "apply_entry", wrapped(Scheduler.apply_entry))
    monkeypatch.setattr(RedBeatScheduler, "apply_async", wrapped(RedBeatScheduler.apply_async), raising=False)
    return names


def numbers(hall: Hall) -> list[Any]:
    return [message.headers.get("monitor") for message in hall.messages()]


def test_a_slot_is_logged_as_beat_logs_it(hall: Hall, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "celery.beat")
    hall.beat(), hall.beat()
    hall.pass_time(21)

    said = [record for record in caplog.records if "Sending due task" in record.message]
    assert [record.message for record in said] == ["Scheduler: Sending due task a (elsewhere)"] * 2
    assert {(record.name, record.levelno) for record in said} == {("celery.beat", logging.INFO)}


def test_a_monitor_is_told_once_of_each_slot_and_its_headers_travel(hall: Hall, told: list[str]):
    hall.beat(), hall.beat()
    hall.pass_time(31)

    assert told == ["a"] * 3
    assert numbers(hall) == [1, 2, 3]


def test_a_slot_that_the_broker_refuses_is_told_once(
    hall: Hall, told: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    beat = hall.beat()
    with monkeypatch.context() as patch:
        patch.setattr(beat, "send_task", lambda *_, **__: 1 / 0)
        hall.pass_time(15)
    hall.pass_time(2)

    assert told == ["a"]
    assert numbers(hall) == [1]
    assert len([record for record in caplog.records if "will try again" in record.message]) == 1


def test_a_further_copy_of_a_message_belongs_to_the_first(told: list[str]):
    hall = Hall(in_memory, beat_schedule={"a": every(43200)}, taskguard_republish_after=60)
    hall.beat()
    hall.clock.advance(43200)
    hall.pass_time(2)
    assert numbers(hall) == [1]
    for _ in range(5):  # nobody has begun with it
        hall.pass_time(1)
        hall.clock.advance(40)

    copies = numbers(hall)
    assert copies and set(copies) == {1}
    assert told == ["a"]


def test_a_copy_that_another_beat_sends_is_not_told(told: list[str]):
    hall = Hall(in_memory, beat_schedule={"a": every(43200)}, taskguard_republish_after=60)
    hall.beat()
    hall.clock.advance(43200)
    hall.pass_time(2)
    hall.beats.clear()
    hall.beat()
    for _ in range(5):
        hall.pass_time(1)
        hall.clock.advance(40)

    first, *copies = numbers(hall)
    assert first == 1 and copies and set(copies) == {None}
    assert told == ["a"]


def test_a_monitor_that_fails_does_not_keep_a_slot_from_running(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Scheduler, "apply_entry", lambda *_, **__: 1 / 0)
    hall = Hall(in_memory, beat_schedule={"a": every(10)})
    hall.beat()
    hall.pass_time(12)

    assert hall.slots() == [("a", 10)]


# -- Sentry ------------------------------------------------------------------------------------------------------------


class Sink:
    """A server that Sentry's client takes for Sentry's, and that keeps its check-ins."""

    def __init__(self) -> None:
        self.check_ins: list[dict[str, Any]] = []
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                sink.take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.dsn = f"http://key@127.0.0.1:{self._server.server_port}/1"

    def take(self, envelope: bytes) -> None:
        _, _, rest = envelope.partition(b"\n")
        while rest:
            line, _, rest = rest.partition(b"\n")
            header = json.loads(line)
            length = header.get("length", rest.find(b"\n"))
            item, rest = rest[:length], rest[length + 1 :]
            if header["type"] == "check_in":
                self.check_ins.append(json.loads(item))

    def by_monitor(self) -> dict[str, list[list[str]]]:
        """The states of each check-in, in the order in which they came, for each monitor."""
        found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for item in list(self.check_ins):
            found[item["monitor_slug"]][item["check_in_id"]].append(item["status"])
        return {name: list(states.values()) for name, states in found.items()}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def sink() -> Iterator[Sink]:
    with closing(Sink()) as made:
        yield made


def make_known(place: Deployment) -> None:
    """So that the next slot is published by the first beat that looks, however late it starts."""
    with closing(open_store(place.conf["taskguard_store"], namespace=place.queue)) as store:
        keeper = Timekeeper(store)
        for name in place.entries:
            keeper.look(place.entry(name), lambda _: pytest.fail("it is due already"))


@pytest.mark.parametrize("scheduler", ["taskguard", "taskguard_redbeat"])
def test_sentry_gets_one_check_in_of_each_slot_and_its_end(
    redis_server: RedisServer, tmp_path: Path, sink: Sink, scheduler: str
):
    soon = datetime.fromtimestamp(time.time() + 3, timezone.utc).isoformat()
    once = {"schedule": HOUR, "options": {"anchor": soon}}  # of intervals under a minute Sentry takes no notice
    entries = {
        "plain": {"task": "plain", **once},
        "guarded": {"task": "tick", **once},
        "broken": {"task": "broken", **once},
        "pulse": {"task": "plain", "schedule": 1},
    }
    conf = {"sentry_dsn": sink.dsn, **(redbeat(redis_server) if "redbeat" in scheduler else {})}
    with deployed(tmp_path, broker=redis_server.url, store=redis_server.url, entries=entries, **conf) as place:
        make_known(place)
        beats = [place.beat(scheduler), place.beat(scheduler)]
        place.worker()
        expected = {
            "plain": [["in_progress", "ok"]],
            "guarded": [["in_progress", "ok"]],
            "broken": [["in_progress", "error"]],
        }
        wait_until(lambda: sink.by_monitor() == expected, timeout=60, what=f"{expected}, not {sink.check_ins}")
        for beat in beats:  # each has looked at every entry by the time it has sent something
            others = [other for other in beats if other is not beat]
            for other in others:
                other.stop()
            wait_until(lambda b=beat: b.has_said("Sending due task pulse"), timeout=60, what=f"{beat.name} is at it")
            for other in others:
                other.resume()

        assert sink.by_monitor() == expected
