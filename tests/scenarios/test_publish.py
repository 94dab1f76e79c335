"""What a call does before any worker sees it: the claim, the message, the handle."""

from __future__ import annotations

import time
from typing import Any

import pytest
from rq.serializers import DefaultSerializer

from taskguard import (
    DuplicateTaskError,
    OutcomeNotKeptError,
    PayloadMismatchError,
    current_fence,
)
from taskguard.protocol.store import Ending
from taskguard.rq.outcomes import QueueOutcomes
from tests.scenarios.queues import CELERY, RQ, Queue
from tests.waiting import wait_until

DAY = 86400
UNREADABLE = {
    # RQ keeps what JSON would change as a pickle, and the app accepts none.
    CELERY: QueueOutcomes(DefaultSerializer).encode((1, 2)),
    # Celery keeps an outcome in the result serializer of its app, and RQ reads JSON and its own.
    RQ: b"application/x-msgpack\nbinary\n\x93\x01\x02\x03",
}
"""An outcome that the other queue may have kept, and this one cannot read."""


# -- a holder is queued or runs --------------------------------------------------------------------------------------


def test_a_call_is_queued_and_its_duplicate_gets_the_same_handle(queue: Queue):
    function = queue.function()
    first, second = function.call(1, "first"), function.call(1, "second")

    assert queue.ids == [first.id] == [second.id]
    entry = queue.entry(function.key(1))
    assert (entry.state, entry.owner) == ("queued", queue.owner(first))
    assert not first.taskguard.duplicate and first.taskguard.owner == first.id
    about = second.taskguard
    assert (about.duplicate, about.owner, about.state, about.key) == (True, first.id, "queued", function.key(1))
    assert about.since == pytest.approx(entry.since)
    queue.work()
    assert queue.outcome(second).value == "first"


def test_raise_tells_who_and_since_when(queue: Queue):
    function = queue.function(on_conflict="raise")
    first = function.call(1)
    with pytest.raises(DuplicateTaskError) as caught:
        function.call(1)

    assert (caught.value.owner, caught.value.state, caught.value.key) == (first.id, "queued", function.key(1))
    assert caught.value.since > 0


def test_wait_publishes_every_call(queue: Queue):
    function = queue.function(on_conflict="wait")

    assert queue.ids == [] and len({function.call(1).id, function.call(1).id}) == len(queue.ids) == 2


def test_with_hold_running_nothing_is_claimed_before_the_start(queue: Queue):
    function = queue.function(hold="running")
    first, second = function.call(1), function.call(1)

    assert queue.ids == [first.id, second.id] and first.id != second.id
    assert queue.entry(function.key(1)) is None


def test_with_one_queued_one_running_the_place_in_the_queue_is_an_entry_of_its_own(queue: Queue):
    function = queue.function(hold="one_queued_one_running")
    first = function.call(1)

    assert function.call(1).id == first.id
    assert queue.entry(f"{function.key(1)}:queue").state == "queued" and queue.entry(function.key(1)) is None


@pytest.mark.parametrize(("lasts", "held_for"), [(10 * DAY, DAY), (40, 40)])
def test_a_place_is_held_no_longer_than_queued_for_and_than_the_job_lasts(queue: Queue, lasts: int, held_for: int):
    function = queue.function()
    function.call(1, lasts=lasts)

    assert queue.entry(function.key(1)).remaining == pytest.approx(held_for, abs=5)


def test_listeners_are_told(queue: Queue):
    events: list[Any] = []
    function = queue.function(listeners=[events.append])
    function.call(1), function.call(1)

    assert [event.kind for event in events] == ["claimed", "duplicate"]


def test_enforce_false_counts_and_publishes(queue: Queue):
    events: list[Any] = []
    function = queue.function(enforce=False, listeners=[events.append])
    first, second = function.call(1), function.call(1)

    assert queue.ids == [first.id, second.id] and not second.taskguard.duplicate
    assert [event.kind for event in events if event.kind == "duplicate"] == ["duplicate"]


@pytest.mark.parametrize(
    "options", [{}, {"hold": "running"}, {"on_conflict": "wait"}], ids=["queued", "running", "wait"]
)
def test_the_name_of_the_store_travels_with_every_guarded_job(queue: Queue, options: dict[str, Any]):
    """Also where nothing is claimed yet: a worker that looks at another store notices."""
    assert queue.envelope(queue.function(**options).call(1)).store


def test_a_call_whose_store_is_silent_is_published_unclaimed(queue: Queue):
    function = queue.function()
    with queue.outage("claim"):
        call = function.call(1, "ran")
    assert queue.ids == [call.id] and not call.taskguard.duplicate
    queue.work()

    assert queue.outcome(call).value == "ran"


# -- a caller's own key ----------------------------------------------------------------------------------------------


def test_the_callers_key_is_the_key(queue: Queue):
    fences: list[Any] = []
    function = queue.function(lambda: fences.append(current_fence()))
    order = f"order-{function.key(1)}"
    first = function.call(1, "same", idempotency_key=order)

    assert function.call(1, "same", idempotency_key=order).id == first.id
    assert queue.entry(function.key(1)) is None
    assert not function.call(1, "same").taskguard.duplicate
    queue.work()
    assert fences[0].idempotency_key == order


def test_an_idempotency_key_with_other_arguments_is_an_error(queue: Queue):
    function = queue.function()
    order = f"order-{function.key(1)}"
    first = function.call(1, 100, idempotency_key=order)
    with pytest.raises(PayloadMismatchError) as caught:
        function.call(1, 200, idempotency_key=order)

    assert caught.value.owner == first.id


def test_an_idempotency_key_stands_for_one_function_only(queue: Queue):
    """Two functions that share their keys: the outcome of one is no answer to a call of the other."""
    charge = queue.function()
    space = charge.key(1)
    charge, refund = queue.function(key_space=space), queue.function(key_space=space)
    charge.call(5, idempotency_key="order")
    with pytest.raises(PayloadMismatchError):
        refund.call(5, idempotency_key="order")


# -- work that is done -----------------------------------------------------------------------------------------------


def test_the_stored_outcome_is_the_answer(queue: Queue):
    function = queue.function(on_done="reuse_success", keep_for=60)
    first = function.call(1, "kept")
    queue.work()
    again = function.call(1, "other")

    assert queue.answered(again) == "finished" and queue.read(again) == "kept"
    assert again.taskguard.duplicate
    assert (again.taskguard.owner, again.taskguard.state) == (first.id, "done")
    assert queue.ids == [] and queue.ran == ["kept"]


def test_a_failure_is_the_answer_where_that_is_wanted(queue: Queue):
    function = queue.function(lambda: 1 // 0, on_done="reuse", keep_for=60)
    first = function.call(1)
    queue.work()
    again = function.call(1)

    assert again.id == first.id and again.taskguard.state == "done"
    assert queue.answered(again) == "failed" and "ZeroDivisionError" in queue.outcome(again).error
    assert queue.ids == [] and len(queue.ran) == 1


def test_a_failure_runs_again_with_reuse_success(queue: Queue):
    function = queue.function(lambda: 1 // (len(queue.ran) > 1), on_done="reuse_success", keep_for=60)
    function.call(1)
    queue.work()
    again = function.call(1)
    queue.work()

    assert not again.taskguard.duplicate and queue.outcome(again).value == 1


def test_a_job_that_claims_at_the_worker_gets_the_stored_outcome(queue: Queue):
    function = queue.function(on_done="reuse_success", keep_for=60)
    function.call(1, "kept")
    queue.work()
    left = function.leave(1, "other")
    queue.work()

    assert queue.outcome(left).value == "kept" and queue.ran == ["kept"]


def test_the_outcome_of_the_other_queue_that_cannot_be_read(queue: Queue):
    function = queue.function(on_done="reuse_success", keep_for=7200)
    ending = Ending(how="succeeded", keep_for=60, outcome=UNREADABLE[queue.name])
    assert function.guard.store.complete(function.hold(), ending)
    answered = function.call(1)
    assert queue.answered(answered) == "finished"
    with pytest.raises(OutcomeNotKeptError):
        queue.read(answered)
    left = function.leave(1)
    queue.work()

    assert "OutcomeNotKeptError" in queue.outcome(left).error and not queue.ran


def test_hold_at_least_keeps_others_out_after_the_end(queue: Queue):
    function = queue.function(hold_at_least=2)
    first = function.call(1, "first")
    queue.work()
    second = function.call(1, "second")
    assert second.taskguard.duplicate
    queue.work()
    assert queue.outcome(first).value == queue.outcome(second).value == "first"
    ended = queue.entry(function.key(1)).since
    wait_until(lambda: time.time() > ended + 2, what="the end of that time")
    third = function.call(1, "third")
    queue.work()

    assert not third.taskguard.duplicate and queue.ran == ["first", "third"]


# -- one more --------------------------------------------------------------------------------------------------------


def test_while_one_runs_one_more_is_queued_and_no_second(queue: Queue):
    function = queue.function(on_conflict="run_once_more")
    function.hold()
    more = function.call(1, "more")

    assert not more.taskguard.duplicate
    assert function.call(1, "more").id == more.id
    assert queue.ids == [more.id]


def test_the_newest_arguments_take_the_place_of_the_one_more(queue: Queue):
    function = queue.function(on_conflict="run_once_more")
    function.hold()
    function.call(1, "older")
    newest = function.call(1, "newest")

    assert queue.entry(f"{function.key(1)}:next").owner == queue.owner(newest)


def test_a_queued_holder_with_the_same_arguments_is_enough(queue: Queue):
    function = queue.function(on_conflict="run_once_more")
    first = function.call(1, "same")

    assert function.call(1, "same").id == first.id
    assert function.call(1, "newer").id != first.id and len(queue.ids) == 2


def test_a_call_after_the_live_run_takes_the_place_of_the_one_more_that_still_waits(queue: Queue):
    function = queue.function(on_conflict="run_once_more")
    holder = function.hold()
    older = function.call(1, "older")
    function.guard.free(holder.key)  # that run is over, and the one more has not come yet
    newest = function.call(1, "newest")
    assert queue.entry(f"{function.key(1)}:next").owner == queue.owner(newest)
    assert queue.envelope(newest).queue_entry == f"{function.key(1)}:next"
    queue.work()

    assert queue.outcome(newest).value == queue.outcome(older).value == "newest" and queue.ran == ["newest"]


def test_what_was_called_before_the_one_more_is_no_holder_for_what_is_called_after_it(queue: Queue):
    function = queue.function(on_conflict="run_once_more")
    first, _, third = (function.call(1, value) for value in (1, 2, 1))

    assert third.id != first.id
    assert queue.entry(f"{function.key(1)}:next").owner == queue.owner(third)
