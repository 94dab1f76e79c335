"""The job of a slot at its worker: what its schedule says of it, and how its slot ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from taskguard import LeaseLostError, StaleFenceError, current_fence
from taskguard.guard import Guard
from taskguard.protocol.store import Lease
from taskguard.schedule.entry import Slot
from taskguard.schedule.running import claim_of
from tests.scenarios.queues import Function, Queue
from tests.schedule.bench import every

AT = 1_794_873_600_000_000
HOUR = 3_600_000_000
REFUSED = 2**52
ENDS = {"skipped": ("free", "skipped"), "waits": ("queued", None), "runs": ("done", "succeeded")}
guarded_and_plain = pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "plain"])


def slot_of(function: Function, at: int = AT, **options: Any) -> Slot:
    return every(3600, function.task.__name__, **options).slot(at)


def end_of(queue: Queue, slot: Slot) -> tuple[str, str | None]:
    run = queue.entry(slot.run_key)
    return run.state, run.how


# -- another job has the key -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_conflict", ["skip", "raise", "wait"])
@pytest.mark.parametrize(
    ("overlap", "becomes"),
    [("skip", "skipped"), ("buffer_one", "waits"), ("buffer_all", "waits"), ("allow_all", "runs")],
)
def test_overlap_wins_over_on_conflict(queue: Queue, on_conflict: str, overlap: str, becomes: str):
    function = queue.function(on_conflict=on_conflict)
    function.hold()
    slot = slot_of(function, overlap=overlap)
    call = queue.publish(slot, function, 1, "ran")
    queue.work(1)

    assert (queue.outcome(call).status == "queued") is (becomes == "waits")
    assert queue.outcome(call).status != "failed"
    assert queue.ran == (["ran"] if becomes == "runs" else [])
    assert end_of(queue, slot) == ENDS[becomes]


# -- how its body ends -----------------------------------------------------------------------------------------------


@guarded_and_plain
@pytest.mark.parametrize("words", ["nothing to do", "put back into stock", "put back: later"])
def test_what_a_body_says_when_it_fails_does_not_decide_whether_it_comes_again(
    queue: Queue, words: str, is_guarded: bool
):
    def fail() -> None:
        raise RuntimeError(words)

    function = queue.either(is_guarded, fail)
    slot = slot_of(function)
    call = queue.publish(slot, function, 1)
    queue.work(1)

    assert queue.outcome(call).status == "failed" and end_of(queue, slot) == ("free", "failed")


@guarded_and_plain
def test_a_scheduled_job_whose_token_is_refused_gets_a_higher_one(queue: Queue, is_guarded: bool):
    """The store has lost its data, say, and the resource has not."""
    tokens = []

    def write() -> None:
        fence = current_fence()
        assert fence is not None
        tokens.append((fence.token > REFUSED, fence.starts))
        if fence.token <= REFUSED:
            raise StaleFenceError(fence.key, fence.token, "row 1", REFUSED)

    function = queue.either(is_guarded, write)
    slot = slot_of(function)
    call = queue.publish(slot, function, 1)
    queue.work(1)
    assert queue.outcome(call).status == "queued" and queue.entry(slot.run_key).state == "queued"
    queue.work(1)

    assert tokens == [(False, 1), (True, 1)]
    assert end_of(queue, slot) == ("done", "succeeded")


@guarded_and_plain
def test_a_scheduled_job_that_lost_its_lease_waits_in_the_queue(queue: Queue, is_guarded: bool):
    """Nobody has taken its slot: it is not taken for dead until its lease is over, and that was one of its starts."""
    starts = []

    def lose() -> None:
        fence = current_fence()
        assert fence is not None
        starts.append(fence.starts)
        if len(starts) == 1:
            raise LeaseLostError(fence.key, fence.token)

    function = queue.either(is_guarded, lose)
    slot = slot_of(function)
    call = queue.publish(slot, function, 1)
    queue.work(1)
    assert queue.outcome(call).status == "queued" and queue.entry(slot.run_key).state == "queued"
    queue.work(1)

    assert starts == [1, 2] and end_of(queue, slot) == ("done", "succeeded")


# -- the store is away -----------------------------------------------------------------------------------------------


@guarded_and_plain
def test_the_next_delivery_of_a_scheduled_job_knows_of_the_outage(
    queue: Queue, is_guarded: bool, monkeypatch: pytest.MonkeyPatch
):
    function = queue.either(is_guarded)
    call = queue.publish(slot_of(function), function, 1)
    with queue.outage("claim"):
        queue.work(1)
    assert queue.envelope(call).after_outage
    asked, ask = [], Guard.ask

    def asking(guard: Guard, *args: Any, **options: Any) -> Any:
        asked.append(options["after_outage"])
        return ask(guard, *args, **options)

    monkeypatch.setattr(Guard, "ask", asking)
    queue.work(1)

    assert len(queue.ran) == 1 and set(asked) == {True}


def test_the_store_goes_away_before_it_hears_that_a_slot_is_skipped(queue: Queue):
    function = queue.plain()
    entry = every(3600, function.task.__name__, overlap="skip")
    queued = replace(claim_of(entry.slot(AT).note(), "another", 60), state="queued")
    assert isinstance(queue.guard.store.claim(queued), Lease)
    call = queue.publish(entry.slot(AT + HOUR), function, 1)
    with queue.outage("release"):
        queue.work(1)

    assert queue.outcome(call).status == "queued" and queue.envelope(call).after_outage and not queue.ran
