"""A service behind the middleware, in a process of its own, and real clients."""

from __future__ import annotations

import asyncio
import random
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import requests

from taskguard import ConfigurationError, Guard, LeaseLostError, StaleFenceError, StoreUnavailableError, open_store
from taskguard.fencing import asgi, wsgi
from taskguard.fencing.exchange import Request, Response
from taskguard.fencing.http import FenceAuth, raise_if_stale
from taskguard.fencing.http_high_water import high_water_marks
from taskguard.fencing.receiver import Admission, Receiver, anyone
from tests.fencing.elsewhere.fences import fence, succession
from tests.fencing.elsewhere.server import LARGE
from tests.fencing.elsewhere.service import Service
from tests.servers import RedisServer
from tests.waiting import wait_until

STORES = {"wsgi": "sqlite", "asgi": "redis"}


@pytest.fixture(scope="module", params=STORES)
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("service")
    url = f"sqlite:///{folder / 'http.db'}"
    if STORES[request.param] == "redis":
        url = request.getfixturevalue("redis_server").url
    with closing(Service(request.param, url, folder / "ledger")) as service:
        yield service


@pytest.fixture(scope="module")
def client_of_service(service: Service) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, timeout=20, verify=False) as client:
        yield client


@pytest.fixture
def http(service: Service, client_of_service: httpx.Client) -> httpx.Client:
    service.ledger.write_bytes(b"")
    return client_of_service


@pytest.fixture
def key() -> dict[str, str]:
    return {"Idempotency-Key": uuid4().hex}


def headers(token: int, resource: str) -> dict[str, str]:
    return {"X-Fencing-Token": str(token), "X-Fencing-Resource": resource}


# -- tokens ------------------------------------------------------------------------------------------------------


def test_a_lower_token_is_refused_with_the_mark_and_the_application_does_not_see_it(
    http: httpx.Client, service: Service
):
    resource = uuid4().hex
    for _ in range(2):
        assert http.post("/", content="new", headers=headers(7, resource)).status_code == 201
    refused = http.post("/", content="old", headers=headers(6, resource))

    assert refused.status_code == 412
    assert refused.headers["content-type"] == "application/problem+json"
    problem = refused.json()
    assert (problem["mark"], problem["token"], problem["resource"]) == (7, 6, resource)
    assert service.lines == ["new", "new"]


def test_tokens_of_different_resources_are_not_compared(http: httpx.Client):
    assert http.post("/", headers=headers(7, uuid4().hex)).status_code == 201
    assert http.post("/", headers=headers(6, uuid4().hex)).status_code == 201


def test_without_a_name_the_path_is_the_resource(http: httpx.Client):
    path = f"/{uuid4().hex}"

    assert http.put(path, headers={"X-Fencing-Token": "7"}).status_code == 201
    assert http.put(path, headers={"X-Fencing-Token": "6"}).status_code == 412


def test_reading_needs_no_token(http: httpx.Client):
    resource = uuid4().hex
    http.post("/", headers=headers(7, resource))

    assert http.get("/", headers=headers(6, resource)).status_code == 201


@pytest.mark.parametrize("token", ["", "seven", "-1", "0", "1.5", "99999999999999999"])
def test_what_is_no_token_is_a_bad_request(http: httpx.Client, token: str):
    assert http.post("/", headers={"X-Fencing-Token": token}).status_code == 400


def test_two_tokens_are_none(http: httpx.Client):
    sent = [("X-Fencing-Token", "8"), ("X-Fencing-Token", "7")]

    assert http.post("/", headers=sent).status_code == 400


def test_a_request_is_not_let_in_while_another_is_at_the_resource(http: httpx.Client, service: Service):
    resource, gate = uuid4().hex, service.ledger.with_name("gate")
    gate.unlink(missing_ok=True)
    first = in_thread(lambda: httpx.post(f"{service.url}/slow", headers=headers(6, resource), timeout=20, verify=False))
    wait_until(lambda: service.lines)
    second = http.post("/", headers=headers(7, resource))
    gate.touch()

    assert first().status_code == 201
    assert (second.status_code, second.headers["retry-after"]) == (409, "1")
    assert http.post("/", headers=headers(7, resource)).status_code == 201
    assert http.post("/", headers=headers(6, resource)).status_code == 412


# -- idempotency keys --------------------------------------------------------------------------------------------


def test_a_repetition_is_answered_as_the_first_was_and_not_done(
    http: httpx.Client, service: Service, key: dict[str, str]
):
    first = http.post("/", content="charge", headers=key)
    again = http.post("/", content="charge", headers={"Idempotency-Key": f'"{key["Idempotency-Key"]}"'})

    assert (again.status_code, again.content) == (first.status_code, first.content) == (201, b'{"lines": 1}')
    assert again.headers["x-made-by"] == "ledger"
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    assert service.lines == ["charge"]


def test_a_twin_that_comes_meanwhile_is_told_to_ask_again(http: httpx.Client, service: Service, key: dict[str, str]):
    gate = service.ledger.with_name("gate")
    gate.unlink(missing_ok=True)
    first = in_thread(lambda: httpx.post(f"{service.url}/slow", headers=key, timeout=20, verify=False))
    wait_until(lambda: service.lines)
    twin = http.post("/slow", headers=key)
    other = http.post("/slow", content="else", headers=key)
    gate.touch()

    assert first().status_code == 201
    assert (twin.status_code, twin.headers["retry-after"]) == (409, "1")
    assert other.status_code == 422
    assert http.post("/slow", headers=key).json() == first().json()


@pytest.mark.parametrize("other", [{"content": "4300"}, {"url": "/other"}, {"method": "PUT"}, {"params": {"a": 1}}])
def test_one_key_for_two_different_requests_is_refused(
    http: httpx.Client, service: Service, key: dict[str, str], other: dict[str, Any]
):
    request: dict[str, Any] = {"method": "POST", "url": "/", "content": "4200", "headers": key}

    assert http.request(**request).status_code == 201
    assert http.request(**request | other).status_code == 422
    assert service.lines == ["4200"]


def test_a_key_of_another_caller_is_another_key(http: httpx.Client, service: Service, key: dict[str, str]):
    for name in ("alice", "bob"):
        assert http.post("/", content=name, headers=key, auth=(name, "secret")).status_code == 201

    assert service.lines == ["alice", "bob"]


@pytest.mark.parametrize(("status", "kept"), [(200, True), (404, True), (422, True), (429, False), (500, False)])
def test_answers_that_may_be_others_later_are_not_kept(
    http: httpx.Client, service: Service, key: dict[str, str], status: int, kept: bool
):
    for _ in range(2):
        assert http.post(f"/status/{status}", content="x", headers=key).status_code == status

    assert len(service.lines) == (1 if kept else 2)


def test_a_request_that_the_application_fails_may_come_again(http: httpx.Client, service: Service, key: dict[str, str]):
    for _ in range(2):
        assert http.post("/crash", headers=key | headers(7, "crash")).status_code == 500

    assert len(service.lines) == 2


def test_a_large_answer_is_passed_on_and_only_the_fact_is_kept(
    http: httpx.Client, service: Service, key: dict[str, str]
):
    resource = headers(7, uuid4().hex)

    assert len(http.post("/large/200", headers=key | resource).content) == LARGE
    again = http.post("/large/200", headers=key | resource)
    assert (again.status_code, again.json()["type"]) == (409, "urn:taskguard:answer-not-kept")
    assert len(service.lines) == 1


def test_a_large_answer_that_may_be_another_later_is_not_taken_for_the_end(
    http: httpx.Client, service: Service, key: dict[str, str]
):
    """As a page that shows where the application failed."""
    for _ in range(2):
        assert http.post("/large/500", headers=key).status_code == 500

    assert len(service.lines) == 2


def test_a_body_that_is_too_large_to_be_compared_is_refused(http: httpx.Client, service: Service, key: dict[str, str]):
    assert http.post("/", content=b"x" * 100_001, headers=key).status_code == 413
    assert service.lines == []


def test_a_body_that_is_cut_off_is_not_taken_for_the_whole(http: httpx.Client, service: Service, key: dict[str, str]):
    url = httpx.URL(service.url)
    with socket.create_connection((url.host, url.port), timeout=20) as sender:
        head = f"POST / HTTP/1.0\r\nIdempotency-Key: {key['Idempotency-Key']}\r\nContent-Length: 12\r\n\r\n"
        sender.sendall(head.encode() + b"amount=10")
        sender.shutdown(socket.SHUT_WR)
        while sender.recv(1000):
            pass

    assert service.lines == []
    assert http.post("/", content="amount=10000", headers=key).status_code == 201


def test_of_many_that_send_the_same_at_once_one_is_done(service: Service, http: httpx.Client, key: dict[str, str]):
    calls = [in_thread(lambda: requests.post(service.url, data="x", headers=key, timeout=20)) for _ in range(8)]
    answers = [call().status_code for call in calls]

    assert set(answers) <= {201, 409}
    assert 201 in answers
    assert service.lines == ["x"]


# -- clients -----------------------------------------------------------------------------------------------------

POSTS: dict[str, Callable[..., Any]] = {
    "httpx": lambda url, text="", **options: httpx.post(url, content=text, verify=False, timeout=20, **options),
    "requests": lambda url, text="", **options: requests.post(url, data=text, timeout=20, **options),
}


@pytest.mark.parametrize("post", POSTS.values(), ids=POSTS)
def test_a_client_sends_the_fence_and_a_stale_one_is_told(
    http: httpx.Client, service: Service, post: Any, guard: Guard
):
    stale, newer = succession(guard, uuid4().hex, idempotency_key=uuid4().hex)
    for name, mine in (("a", newer), ("b", newer), ("a", newer)):
        assert post(service.url, name, auth=FenceAuth(mine, name=name)).status_code == 201

    assert service.lines == ["a", "b"]
    refused = post(service.url, "c", auth=FenceAuth(stale, name="c"))
    with pytest.raises(StaleFenceError) as error:
        raise_if_stale(refused, stale)
    assert (error.value.key, error.value.token, error.value.mark) == (stale.key, stale.token, newer.token)
    raise_if_stale(http.get("/"))


@pytest.mark.parametrize("post", POSTS.values(), ids=POSTS)
def test_a_client_finds_the_fence_of_the_body_that_runs(service: Service, http: httpx.Client, post: Any, guard: Guard):
    auth = FenceAuth()
    for text in ("one", "two"):
        with guard.hold("nightly: Größe 7%\n"):
            assert post(service.url, text, auth=auth).status_code == 201

    assert service.lines == ["one", "two"]
    with httpx.Client(event_hooks={"request": [auth]}, verify=False) as client, guard.hold("hooked"):
        assert client.post(service.url, content="three").request.headers["x-fencing-resource"] == "hooked"
    with pytest.raises(ConfigurationError, match="there is no current fence"):
        post(service.url, auth=auth)


def test_a_client_that_lost_its_lease_sends_nothing(service: Service, http: httpx.Client, guard: Guard):
    with guard.hold("job", on_lost="continue") as mine:
        guard.store.forget("job")
        guard.heartbeat.renew_now(mine._holding)
        with pytest.raises(LeaseLostError):
            http.post("/", auth=FenceAuth(mine))

    assert service.lines == []


async def _post_async(url: str, auth: FenceAuth) -> int:
    async with httpx.AsyncClient(timeout=20, verify=False) as client:
        return (await client.post(url, auth=auth)).status_code


def test_an_async_client_can_send_it_too(service: Service, http: httpx.Client, guard: Guard):
    assert asyncio.run(_post_async(service.url, FenceAuth(fence(guard)))) == 201


# -- marks -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite", "redis", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param in ("memory", "sqlite"):
        url = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path / 'marks.db'}"}[request.param]
    else:
        url = request.getfixturevalue("redis_server" if request.param == "redis" else "postgres_server").url
    with closing(open_store(url, namespace=uuid4().hex)) as store:
        yield store


def test_a_mark_only_rises_whoever_asks_at_once(store: Any):
    marks = high_water_marks(store, 60)
    tokens = [1_700_000_000_000_000 + number for number in range(40)]
    calls = [
        in_thread(lambda part=part: [(token, marks.raise_to("r", token)) for token in tokens[part::4]])
        for part in range(4)
    ]
    answers = [answer for call in calls for answer in call()]

    assert all(mark >= token for token, mark in answers)
    assert marks.raise_to("r", 1) == tokens[-1]
    assert marks.raise_to("other", 1) == 1


def test_a_store_that_is_silent_lets_nobody_in(guard: Guard):
    class Silent:
        def raise_to(self, resource: str, token: int) -> int:
            raise StoreUnavailableError("store", "timed out")

    answer = Receiver(guard, caller=anyone, marks=Silent()).admit(Request("POST", "/", "", {"x-fencing-token": "7"}))

    assert isinstance(answer, Response)
    assert (answer.status, dict(answer.headers)["Retry-After"]) == (503, "1")
    assert not [entry for entry in guard.store.scan() if entry.state == "running"]


class SlowMarks:
    """Marks that are asked, and answer when they are told to."""

    def __init__(self) -> None:
        self.asked, self.answer = threading.Event(), threading.Event()

    def raise_to(self, resource: str, token: int) -> int:
        self.asked.set()
        assert self.answer.wait(20)
        return token


async def _cancelled_while_it_waits(app: asgi.Fenced, marks: SlowMarks) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        raise AssertionError("nobody is there to be answered")

    headers = [(b"x-fencing-token", b"7"), (b"idempotency-key", b"k")]
    scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
    request = asyncio.create_task(app(scope, receive, send))
    await asyncio.to_thread(marks.asked.wait, 20)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    marks.answer.set()
    await asyncio.sleep(0)
    while len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0.01)


def test_a_request_that_is_cancelled_while_it_waits_holds_nobody_up(guard: Guard):
    async def never(*_: Any) -> None:
        raise AssertionError("it was cancelled before")

    marks = SlowMarks()
    receiver = Receiver(guard, caller=anyone, marks=marks)
    asyncio.run(_cancelled_while_it_waits(asgi.Fenced(never, receiver), marks))  # type: ignore[arg-type]

    wait_until(lambda: not [entry for entry in guard.store.scan() if entry.state == "running"])
    again = receiver.admit(Request("POST", "/", "", {"x-fencing-token": "7", "idempotency-key": "k"}))
    assert isinstance(again, Admission)
    again.fail()


def test_a_service_that_dies_is_asked_again_and_the_work_is_done_then(tmp_path: Path, key: dict[str, str]):
    url = f"sqlite:///{tmp_path / 'http.db'}"
    with closing(Service("wsgi", url, tmp_path / "ledger", lease=0.5)) as first:
        asking = in_thread(lambda: _status(f"{first.url}/slow", key))
        wait_until(lambda: first.lines)
    (tmp_path / "gate").touch()

    assert asking() == 0
    with closing(Service("wsgi", url, tmp_path / "ledger")) as second:
        # 409 until the dead one's lease is over
        assert wait_until(lambda: (status := _status(f"{second.url}/slow", key)) != 409 and status) == 201


def _status(url: str, headers: dict[str, str]) -> int:
    try:
        return requests.post(url, headers=headers, timeout=20).status_code
    except requests.ConnectionError:
        return 0


def test_requests_of_one_resource_are_let_in_in_the_order_of_their_tokens(redis_server: RedisServer, tmp_path: Path):
    tokens = random.Random(3).sample(range(1, 1000), 32)
    services = [Service(kind, redis_server.url, tmp_path / "ledger") for kind in ("wsgi", "asgi")]
    resource = uuid4().hex

    def post(part: int) -> list[int]:
        url, session = services[part % 2].url, requests.Session()
        return [
            session.post(url, data=str(token), headers=headers(token, resource), timeout=20).status_code
            for token in tokens[part::4]
        ]

    answers = [status for call in [in_thread(partial(post, part)) for part in range(4)] for status in call()]
    lines = [int(line) for line in services[0].lines]
    for service in services:
        service.close()

    assert set(answers) <= {201, 409, 412}
    assert len(lines) == answers.count(201) > 1
    assert lines == sorted(lines)


def test_a_process_that_was_overtaken_while_it_admitted_lets_nobody_in(guard: Guard):
    class Overtaken:
        def raise_to(self, resource: str, token: int) -> int:
            for entry in guard.store.scan("http-turn:"):
                guard.store.forget(entry.key)
                for holding in guard.heartbeat._all():
                    guard.heartbeat.renew_now(holding)
            return token

    answer = Receiver(guard, caller=anyone, marks=Overtaken()).admit(Request("POST", "/", "", {"x-fencing-token": "7"}))

    assert isinstance(answer, Response)
    assert answer.status == 409


@pytest.mark.parametrize("says", [lambda environ, begin: [b"no status"], lambda environ, begin: begin("", []) and []])
def test_an_application_that_breaks_the_rules_holds_nobody_up(guard: Guard, says: Any):
    body = {"CONTENT_LENGTH": "0", "wsgi.input": BytesIO(b"")}
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/", "HTTP_IDEMPOTENCY_KEY": "k", **body}
    with pytest.raises(ValueError, match="int"):
        wsgi.Fenced(says, Receiver(guard, caller=anyone))(environ, lambda *_: None)

    assert not [entry for entry in guard.store.scan() if entry.state == "running"]


async def _asked(app: asgi.Fenced, *, until: int = 2, **headers: str) -> list[Any]:
    """What is sent to a request; and that is all, whatever the application raises after it.

    The client is gone after so many messages.
    """
    said: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if len(said) == until:
            raise BrokenPipeError
        said.append(message)

    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    with suppress(ZeroDivisionError, BrokenPipeError):
        await app({"type": "http", "method": "POST", "path": "/", "headers": named}, receive, send)
    return said


@pytest.mark.parametrize("size", [4, LARGE])
def test_what_an_application_does_after_its_answer_neither_delays_it_nor_takes_it_back(guard: Guard, size: int):
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * size})
        seen.append([entry.key for entry in guard.store.scan("http-turn:") if entry.state == "running"])
        seen.append([entry.state for entry in guard.store.scan("http:")])
        raise ZeroDivisionError  # a task in the background

    fenced = asgi.Fenced(app, Receiver(guard, caller=anyone))
    first, again = (asyncio.run(_asked(fenced, idempotency_key="k", x_fencing_token="7")) for _ in range(2))

    assert (first[0]["status"], len(first[1]["body"])) == (201, size)
    assert again[0]["status"] == (201 if size == 4 else 409)
    assert seen == [["http-turn:/"], ["done"]]  # done once, and alone at the resource until the application has ended
    assert not [entry for entry in guard.store.scan() if entry.state == "running"]


def test_an_answer_that_was_not_said_to_its_end_is_not_kept_as_if_it_were_whole(guard: Guard):
    """As by an application that sees that its client went away."""
    runs = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        runs.append(scope)
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b'{"cents": 10', "more_body": True})

    fenced = asgi.Fenced(app, Receiver(guard, caller=anyone))
    first, again = (asyncio.run(_asked(fenced, idempotency_key="k")) for _ in range(2))

    assert first[1]["more_body"]  # the server sees that it is not whole
    assert again[0]["status"] == 409 and b"answer-not-kept" in again[1]["body"]
    assert len(runs) == 1


@pytest.mark.parametrize("until", [0, 1, 2])
def test_a_client_that_goes_away_while_it_is_answered_does_not_have_the_work_done_again(guard: Guard, until: int):
    runs = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        runs.append(scope)
        await send({"type": "http.response.start", "status": 201, "headers": []})
        for more in (True, False):
            await send({"type": "http.response.body", "body": b"x" * LARGE, "more_body": more})

    fenced = asgi.Fenced(app, Receiver(guard, caller=anyone))
    asyncio.run(_asked(fenced, until=until, idempotency_key="k", x_fencing_token="7"))
    again = asyncio.run(_asked(fenced, idempotency_key="k", x_fencing_token="7"))

    assert again[0]["status"] == 409 and b"answer-not-kept" in again[1]["body"]
    assert len(runs) == 1


def test_those_who_wait_for_a_resource_do_not_keep_its_holder_from_leaving(guard: Guard):
    """As many as there are threads, and more."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def ask_all(fenced: asgi.Fenced) -> list[int]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        answers = await asyncio.gather(*(_asked(fenced, x_fencing_token="7") for _ in range(6)))
        return [answer[0]["status"] for answer in answers]

    receiver = Receiver(guard, caller=anyone, wait_up_to=20)
    assert asyncio.run(ask_all(asgi.Fenced(app, receiver))) == [201] * 6


def test_what_an_application_opened_is_closed_also_if_it_fails(guard: Guard):
    closed = []

    class Chunks:
        def __iter__(self) -> Iterator[bytes]:
            yield b"a"
            raise ZeroDivisionError

        def close(self) -> None:
            closed.append(True)

    def app(environ: Any, begin: Any) -> Any:
        begin("200 OK", [])
        return Chunks()

    body = {"CONTENT_LENGTH": "0", "wsgi.input": BytesIO(b"")}
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/", "HTTP_IDEMPOTENCY_KEY": "k", **body}
    with pytest.raises(ZeroDivisionError):
        wsgi.Fenced(app, Receiver(guard, caller=anyone))(environ, lambda *_: None)

    assert closed == [True]


@pytest.mark.parametrize("size", [4, LARGE])
def test_an_application_that_fails_while_it_answers_has_not_done_the_work(guard: Guard, size: int):
    """It says so as PEP 3333 has it: by another status, which comes too late if the first one was sent."""

    def app(environ: Any, begin: Any) -> Iterator[bytes]:
        begin("201 Created", [])
        yield b"x" * size
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            begin("500 Failed", [], sys.exc_info())
        yield b"failed"

    body = {"CONTENT_LENGTH": "0", "wsgi.input": BytesIO(b"")}
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/", "HTTP_IDEMPOTENCY_KEY": "k", **body}
    fenced = wsgi.Fenced(app, Receiver(guard, caller=anyone))
    for _ in range(2):
        said: list[Any] = []
        answer = fenced(environ, lambda *head, said=said: said.append(head[0][:3]))
        with suppress(ZeroDivisionError):
            said.append(len(b"".join(answer)))
        if hasattr(answer, "close"):
            answer.close()
        assert said == (["201"] if size == LARGE else ["500", len(b"failed")])


def test_a_key_keeps_the_space_at_its_end(guard: Guard):
    """A header does not."""
    sent = [FenceAuth(fence(guard, idempotency_key=key))(httpx.Request("POST", "http://x")) for key in ("a", "a ")]

    assert [request.headers["idempotency-key"] for request in sent] == ["a", "a%20"]


def test_headers_made_by_hand_are_those_that_a_client_sends(guard: Guard):
    mine = fence(guard, idempotency_key="\N{SNOWMAN}\n")
    by_hand = httpx.Request("POST", "http://x", headers=mine.headers())
    sent = FenceAuth(mine)(httpx.Request("POST", "http://x"))

    for name in ("idempotency-key", "x-fencing-token"):
        assert by_hand.headers[name] == sent.headers[name]


def test_headers_can_be_required(guard: Guard):
    receiver = Receiver(guard, caller=anyone, required=["Idempotency-Key"])
    answer = receiver.admit(Request("POST", "/", "", {}))

    assert isinstance(answer, Response) and answer.status == 400
    assert receiver.concerns("POST", {}) and not receiver.concerns("GET", {})
    with pytest.raises(ConfigurationError, match="required="):
        Receiver(guard, caller=anyone, required=["Authorization"])


def in_thread(call: Callable[[], Any]) -> Callable[[], Any]:
    """*call*, begun in a thread; its answer when asked for."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()

    def answer() -> Any:
        thread.join(30)
        return answers[0]

    return answer
