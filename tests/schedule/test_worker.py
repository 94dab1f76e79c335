"""What a worker makes of the message of a slot: run once, known to the schedule while it lasts, whatever its task."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from taskguard import open_store
from taskguard.celery.headers import with_envelope
from taskguard.engine.envelope import Envelope
from taskguard.protocol.store import Claim, Claimant, Ending, How, Lease
from taskguard.schedule.boundaries import MICROS
from taskguard.schedule.entry import Slot
from tests.schedule.deployment import Deployment, deployed
from tests.servers import RedisServer
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(120)


@contextmanager
def running(redis_server: RedisServer, directory: Path, entries: dict[str, Any]) -> Iterator[Deployment]:
    with deployed(directory, broker=redis_server.url, store=redis_server.url, entries=entries) as place:
        place.worker("prefork", 4)
        place.wait_until_ready()
        yield place


def client(place: Deployment) -> Celery:
    app = Celery(broker=place.conf["broker_url"], set_as_current=False)
    app.conf.task_default_queue = app.conf.control_exchange = place.queue
    return app


def sender(place: Deployment) -> Callable[[Slot, str], None]:
    """Sends the message of a slot as a beat does."""
    app = client(place)

    def send(slot: Slot, task: str, expires: float | None = None, limit: int | None = None, **kwargs: Any) -> None:
        headers = with_envelope({}, Envelope(id=slot.job_id, slot=slot.note().as_dict()))
        app.send_task(task, (), kwargs, task_id=slot.job_id, headers=headers, expires=expires, time_limit=limit)

    return send


def slot_of(place: Deployment, name: str, ago: int = 0) -> Slot:
    at = place.entry(name).schedule.until(round(time.time() * MICROS))
    assert at is not None
    return place.entry(name).slot(at - ago * 3600 * MICROS)


ENTRIES = {
    "plain": {"task": "plain", "schedule": 3600, "options": {"overlap": "skip"}},
    "guarded": {"task": "tick", "schedule": 3600, "options": {"overlap": "skip"}},
    "flaky": {"task": "flaky", "schedule": 3600},
    "guarded flaky": {"task": "guarded_flaky", "schedule": 3600},
    "replaced": {"task": "tick", "schedule": 3600, "options": {"overlap": "cancel_other"}},
    "cancel": {"task": "plain", "schedule": 1, "kwargs": {"seconds": 60}, "options": {"overlap": "cancel_other"}},
}


def test_messages_of_slots(redis_server: RedisServer, tmp_path: Path):
    """One worker for all of these: it takes seconds to start."""
    with running(redis_server, tmp_path, ENTRIES) as place:
        send = sender(place)
        ledger = place.ledger

        store = open_store(redis_server.url, namespace=place.queue)

        # A header that Celery takes for all of them harms no worker.
        client(place).send_task("plain", headers={"headers": "odd"})
        ledger.wait_for("end", entry=None)

        # A doubled message runs once, of any task; the body knows its slot.
        for name, task in (("plain", "plain"), ("guarded", "tick")):
            slot = slot_of(place, name)
            for _ in range(3):
                send(slot, task)
            [line] = ledger.wait_for("end", entry=name)
            assert line["slot"] == slot.at / MICROS
            assert line["key"] == slot.key
            assert store.get(slot.run_key).payload == f"{slot.at}+"  # if its worker had died, it was to come again
        marker = slot_of(place, "plain", ago=5)
        send(marker, "plain")
        ledger.wait_for("end", slot=marker.at / MICROS)
        assert ledger.count("start", entry="guarded") == 1
        assert ledger.count("start", entry="plain", slot=slot_of(place, "plain").at / MICROS) == 1

        # The run of another slot is skipped while one lasts, and told of.
        long, short = slot_of(place, "plain", ago=1), slot_of(place, "plain", ago=2)
        send(long, "plain", seconds=3)
        ledger.wait_for("start", slot=long.at / MICROS)
        send(short, "plain")
        ledger.wait_for("slot_skipped", job=short.job_id)
        ledger.wait_for("end", slot=long.at / MICROS)
        assert ledger.count("start", slot=short.at / MICROS) == 0

        # So is one whose key is held by a call that no schedule made.
        send_now = client(place).send_task
        send_now("tick", kwargs={"seconds": 3})
        ledger.wait_for("start", entry="")
        slot = slot_of(place, "guarded", ago=1)
        send(slot, "tick", seconds=3)
        ledger.wait_for("slot_skipped", job=slot.job_id)

        # A retry is the same run, of the same slot, and its end frees the schedule.
        for name, task in (("flaky", "flaky"), ("guarded flaky", "guarded_flaky")):
            slot = slot_of(place, name)
            send(slot, task)
            ledger.wait_for("end", entry=name)
            wait_until(lambda s=slot: store.get(s.run_key).state == "done")
            begun = ledger.lines("start", entry=name)
            assert [line["retries"] for line in begun] == [0, 1]
            assert {(line["slot"], line["key"]) for line in begun} == {(slot.at / MICROS, slot.key)}
            assert store.get(slot.run_key).payload == str(slot.at)  # no scheduler can make the message of a retry

        # One that meets the run of another slot is skipped, though its own key is free.
        slot = slot_of(place, "guarded flaky", ago=1)
        other = Claim(slot.run_key, "another slot's", "attempt", lease=60, keep_for=60)
        assert isinstance(store.claim(other), Lease)
        send(slot, "guarded_flaky")
        ledger.wait_for("slot_skipped", job=slot.job_id)
        assert ledger.count("start", slot=slot.at / MICROS, entry="guarded flaky") == 0

        # A guarded run that is cancelled ends, and frees its own key for the next; one in the queue does not begin.
        # So is one that schedulers have given up.
        first, last = (slot_of(place, "replaced", ago) for ago in (6, 1))
        over: dict[How, Slot] = {
            "revoked": slot_of(place, "replaced", ago=5),
            "expired": slot_of(place, "replaced", ago=3),
        }
        send(first, "tick", seconds=60)
        ledger.wait_for("start", entry="replaced", slot=first.at / MICROS)
        run = store.get(first.run_key)
        revoked = Ending(how="revoked", keep_for=600)
        assert store.release(Claimant(run.key, run.owner, run.attempt), revoked, anyway=True)
        for how, slot in over.items():
            ending = Ending(how=how, keep_for=600)
            store.release(Claimant(slot.run_key, slot.job_id, "none"), ending, anyway=True)
            send(slot, "tick", seconds=60)
        send(last, "tick", seconds=60)
        ledger.wait_for("start", entry="replaced", slot=last.at / MICROS, timeout=30)
        assert [ledger.count("start", entry="replaced", slot=slot.at / MICROS) for slot in over.values()] == [0, 0]
        assert ledger.count("start", entry="replaced", slot=first.at / MICROS) == 1

        # One that expired or was revoked in the queue frees the schedule when its message is seen.
        ended = [
            (slot_of(place, name, ago), task, how)
            for name, task in (("plain", "plain"), ("guarded", "tick"))
            for ago, how in ((7, "expired"), (8, "revoked"))
        ]
        client(place).control.revoke([slot.job_id for slot, _, how in ended if how == "revoked"])
        wait_until(lambda: place.processes[0].has_said("flagged as revoked"), timeout=30)
        for slot, task, how in ended:
            claim = Claim(slot.run_key, slot.job_id, how, state="queued", lease=3600, keep_for=60, payload=str(slot.at))
            assert isinstance(store.claim(claim), Lease)
            send(slot, task, expires=-1 if how == "expired" else None)
            wait_until(lambda s=slot, h=how: store.get(s.run_key).how == h, timeout=30)
            assert store.get(slot.run_key).state == "free"
            assert ledger.count("start", slot=slot.at / MICROS) == 0
        store.close()


def test_the_parent_settles_the_slot_of_a_child_that_is_gone(redis_server: RedisServer, tmp_path: Path):
    """Of plain tasks, whose lease is thirty seconds: nobody waits for its end."""
    entries = {name: {"task": name, "schedule": 3600} for name in ("plain", "early", "returned")}
    with running(redis_server, tmp_path, entries) as place:
        send, ledger = sender(place), place.ledger
        store = open_store(redis_server.url, namespace=place.queue)

        def begin(name: str, ago: int, **options: Any) -> tuple[Slot, int]:
            slot = slot_of(place, name, ago)
            send(slot, name, seconds=60, **options)
            [line] = ledger.wait_for("start", slot=slot.at / MICROS, entry=name)
            return slot, line["pid"]

        def ends(slot: Slot, how: str) -> None:
            wait_until(lambda: store.get(slot.run_key).state == "free", timeout=25)
            assert store.get(slot.run_key).how == how

        for name in ("plain", "early"):
            slot, pid = begin(name, 1)
            os.kill(pid, signal.SIGKILL)
            ends(slot, "failed")

        slot, _ = begin("plain", 2, limit=1)
        ends(slot, "failed")

        slot, _ = begin("plain", 3)
        client(place).control.revoke(slot.job_id, terminate=True, signal="SIGKILL")
        ends(slot, "revoked")

        # Its time is over while the worker stops as it should.
        slot, _ = begin("plain", 4, limit=2)
        place.processes[0].process.send_signal(signal.SIGTERM)
        wait_until(lambda: place.processes[0].process.poll() is not None, timeout=30)
        ends(slot, "failed")
        place.processes[0].start()

        slot, pid = begin("returned", 1)
        os.kill(pid, signal.SIGKILL)
        lines = ledger.wait_for("start", 2, entry="returned")
        assert [line["starts"] for line in lines] == [1, 2]
        assert store.get(slot.run_key).state == "running"

        # A worker that is told to stop at once gives its messages back, and the slot waits with them.
        place.processes[0].process.send_signal(signal.SIGQUIT)
        wait_until(lambda: store.get(slot.run_key).state == "queued", timeout=15)
        store.close()


def test_a_run_whose_worker_died_and_whose_message_is_lost_runs_again(redis_server: RedisServer, tmp_path: Path):
    """Only where the message was to be kept until the run had ended: else the run is gone with its worker."""
    entries = {name: {"task": name, "schedule": 3600} for name in ("plain", "early")}
    entries |= {"guarded": {"task": "tick", "schedule": 3600}}
    with running(redis_server, tmp_path, entries) as place:
        send, ledger = sender(place), place.ledger
        slots = {name: slot_of(place, name) for name in entries}
        for name, entry in entries.items():
            send(slots[name], entry["task"], seconds=60)
            ledger.wait_for("start", entry=name)
        place.processes[0].kill()
        with (
            closing(redis.Redis.from_url(redis_server.url)) as broker,
            closing(open_store(redis_server.url, namespace=place.queue)) as store,
        ):
            broker.delete("unacked", "unacked_index")
            for slot in slots.values():
                run = store.get(slot.run_key)
                own = Lease(run.key, run.owner, run.attempt, token=run.token, starts=run.starts)
                assert store.renew([(own, 0.1)]) == [True]  # that is over soon

            place.beat()
            place.processes[0].start()
            for name in ("plain", "guarded"):
                [line] = ledger.wait_for("end", entry=name, timeout=60)
                assert line["slot"] == slots[name].at / MICROS
            assert ledger.count("start", entry="early") == 1
            assert store.get(slots["early"].run_key).state == "running"
        assert place.told("plain", "slot_republished") == {slots["plain"].job_id}


@pytest.mark.faults
def test_a_run_that_is_cancelled_is_told_and_does_not_come_back(redis_server: RedisServer, tmp_path: Path):
    entries = {"cancel": ENTRIES["cancel"] | {"schedule": 4}}
    conf = {"taskguard_republish_after": 60}
    with deployed(tmp_path, broker=redis_server.url, store=redis_server.url, entries=entries, **conf) as place:
        place.beat()
        place.worker("prefork", 8)
        place.wait_until_ready()
        place.ledger.wait_for("start", 2, timeout=40)
        first = place.ledger.lines("start")[0]
        place.ledger.wait_for("slot_cancelled", 1)
        wait_until(lambda: place.processes[1].has_said(f"owner {first['job']}, token"), timeout=40)

        assert place.ledger.count("start", slot=first["slot"]) == 1
        assert place.ledger.count("end") == 0
