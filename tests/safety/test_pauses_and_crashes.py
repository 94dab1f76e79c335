"""Holders that are stopped, killed, or told too late: on every store, with real signals."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
import redis

from taskguard.protocol.store import Claimant, Completed, Ending, Held, Lease, Store
from taskguard.testing.contract import RELEASED, ask, claimed, succeeded
from tests.naive import open_any
from tests.safety.processes import RemoteWorker
from tests.waiting import wait_until

safety = pytest.mark.safety

LEASE = 0.6


@pytest.fixture
def namespace() -> str:
    return uuid4().hex


@pytest.fixture
def store(store_url: str, namespace: str) -> Iterator[Store]:
    with closing(open_any(store_url, namespace=namespace)) as store:
        yield store


@pytest.fixture
def worker(store_url: str, namespace: str) -> Iterator[RemoteWorker]:
    with RemoteWorker(store_url, namespace) as worker:
        yield worker


@pytest.fixture
def wipe(store_url: str) -> Callable[[], None]:
    def wipe() -> None:
        if store_url.startswith("sqlite"):
            path = store_url.removeprefix("sqlite:///").partition("?")[0]
            for suffix in ("", "-wal", "-shm"):
                Path(f"{path}{suffix}").unlink()
        elif store_url.startswith("postgresql"):
            with psycopg.connect(store_url) as connection:
                connection.execute("DROP SCHEMA taskguard CASCADE")
        else:
            redis.Redis.from_url(store_url.removeprefix("naive+")).flushall()

    return wipe


def taken_over(store: Store, key: str = "key") -> Lease:
    """The lease of whoever waits until the holder has fallen silent."""

    def granted() -> Lease | None:
        answer = store.claim(request)
        return answer if isinstance(answer, Lease) else None

    request = ask("successor", key)
    return wait_until(granted)


@safety
def test_a_stopped_holder_that_wakes_knows_before_it_writes(store: Store, worker: RemoteWorker, tmp_path: Path):
    ledger = tmp_path / "ledger"
    token = worker.ask("hold", "key", LEASE)
    worker.stop()
    successor = taken_over(store)
    ledger.write_text("successor\n")
    store.complete(successor, succeeded())
    worker.wake()

    assert successor.token > token
    assert "is lost" in worker.ask("write_if_held", str(ledger), "stale")
    assert ledger.read_text() == "successor\n"


def test_a_stopped_holder_that_nobody_replaced_may_go_on(store: Store, worker: RemoteWorker, tmp_path: Path):
    worker.ask("hold", "key", LEASE)
    worker.stop()
    wait_until(lambda: (entry := store.get("key")) is not None and entry.remaining < 0)
    worker.wake()

    assert worker.ask("write_if_held", str(tmp_path / "ledger"), "late") == "written"


@safety
def test_a_stopped_holder_that_wakes_does_not_free_its_successor(store: Store, worker: RemoteWorker):
    worker.ask("hold", "key", LEASE)
    worker.stop()
    successor = taken_over(store)
    worker.wake()
    worker.ask("let_go")

    assert isinstance(store.claim(ask("third")), Held)
    assert store.renew([(successor, 60)]) == [True]


def test_a_killed_holders_work_is_taken_over_under_a_higher_token(store: Store, worker: RemoteWorker):
    token = worker.ask("hold", "key", LEASE)
    worker.kill()
    successor = taken_over(store)

    assert successor.took_over
    assert successor.token > token


def test_a_living_holder_is_renewed_beyond_its_lease(store: Store, worker: RemoteWorker):
    token = worker.ask("hold", "key", LEASE)
    until = time.monotonic() + 3 * LEASE
    while time.monotonic() < until:
        time.sleep(0.01)
        answer = store.claim(ask("rival"))

        assert isinstance(answer, Held)
        assert answer.token == token
        assert answer.remaining > 0


@safety
def test_a_finished_job_that_is_delivered_again_does_not_run(store: Store):
    store.complete(claimed(store, "job"), succeeded(b"result"))
    store.complete(claimed(store, "another"), succeeded())
    answer = store.claim(ask("job"))

    assert isinstance(answer, Completed)
    assert answer.outcome == b"result"


@safety
def test_a_failed_job_that_is_delivered_again_does_not_run(store: Store):
    store.release(claimed(store, "job"), Ending(how="failed", keep_for=600))

    assert isinstance(store.claim(ask("job")), Completed)


@safety
def test_a_job_that_was_revoked_while_it_ran_does_not_run_again(store: Store):
    """Its run gives the key back as if nothing had happened."""
    running = claimed(store, "job")
    store.release(Claimant("key", "job", "of another worker"), Ending(how="revoked", keep_for=600), anyway=True)
    store.release(running, Ending(keep_for=600))

    answer = store.claim(ask("job"))
    assert isinstance(answer, Completed) and answer.how == "revoked"


@safety
def test_a_job_that_joined_another_does_not_run_by_another_copy_of_its_message(store: Store):
    store.complete(claimed(store, "holder"), succeeded(b"result"))
    assert isinstance(store.claim(replace(ask("job"), join="holder")), Completed)

    answer = store.claim(ask("job"))  # the copy does not know of it
    assert isinstance(answer, Completed) and answer.outcome == b"result"


def test_a_job_is_not_run_beside_itself(store: Store):
    claimed(store, "job")
    answer = store.claim(ask("job"))

    assert isinstance(answer, Held)
    assert (answer.owner, answer.state) == ("job", "running")


@safety
def test_a_parent_that_settles_for_its_dead_child_does_not_free_the_job_elsewhere(store: Store, worker: RemoteWorker):
    dead = claimed(store, "job", lease=LEASE)
    request = ask("job")
    elsewhere = wait_until(lambda: answer if isinstance(answer := store.claim(request), Lease) else None)
    store.release(Claimant("key", "job", dead.attempt), Ending(how="failed", keep_for=600))

    assert isinstance(store.claim(ask("rival")), Held)
    assert store.renew([(elsewhere, 60)]) == [True]


@safety
def test_tokens_rise_though_the_store_lost_its_data(store: Store, wipe: Callable[[], None]):
    for _ in range(5):
        before = claimed(store, uuid4().hex)
        store.release(before, RELEASED)
    wipe()

    assert claimed(store, "after").token > before.token


@safety
def test_a_holder_whose_store_lost_its_data_is_told(
    store: Store, worker: RemoteWorker, wipe: Callable[[], None], tmp_path: Path
):
    worker.ask("hold", "key", LEASE)
    wipe()
    successor = claimed(store, "successor")

    def refused() -> bool:
        return "is lost" in worker.ask("write_if_held", str(tmp_path / "ledger"), "stale")

    wait_until(refused, timeout=LEASE * 2)
    assert store.renew([(successor, 60)]) == [True]


@safety
def test_work_that_many_are_told_to_do_is_done_once(store_url: str, namespace: str, tmp_path: Path):
    ledger = tmp_path / "ledger"
    workers = [RemoteWorker(store_url, namespace) for _ in range(4)]
    try:
        for worker in workers * 3:
            worker.tell("ledger", "invoice", str(ledger), 600, 5)
        answers = [worker.answer() for worker in workers * 3]
    finally:
        for worker in workers:
            worker.kill()

    assert answers == [1] * 12
    assert len(ledger.read_text().splitlines()) == 1


def test_work_whose_worker_was_killed_is_done_by_another(store_url: str, namespace: str, tmp_path: Path):
    ledger = tmp_path / "ledger"
    with RemoteWorker(store_url, namespace) as victim, RemoteWorker(store_url, namespace) as heir:
        os.mkfifo(ledger)  # the body blocks where it opens the file: it is in the middle when it is killed
        victim.tell("ledger", "invoice", str(ledger), 600, LEASE)
        with closing(open_any(store_url, namespace=namespace)) as store:
            wait_until(lambda: store.get("invoice"), timeout=10)
        victim.kill()
        ledger.unlink()

        assert heir.ask("ledger", "invoice", str(ledger), 600, LEASE) == 1
        assert heir.ask("ledger", "invoice", str(ledger), 600, LEASE) == 1
    assert len(ledger.read_text().splitlines()) == 1
