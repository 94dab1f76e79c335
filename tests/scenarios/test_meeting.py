"""Jobs of one key that are called while one of them runs, at real workers."""

from __future__ import annotations

from tests.scenarios.conftest import Workers
from tests.scenarios.queues import RQ
from tests.scenarios.workers import EVERY_BROKER, every_kind, on


@every_kind
def test_wait_runs_all_of_them_one_at_a_time(workers: Workers):
    workers.start(2)
    calls = [workers.call("waits", value=n) for n in range(4)]

    assert len({call.id for call in calls}) == 4
    assert sorted(workers.result(call) for call in calls) == [0, 1, 2, 3]
    assert workers.runs == 4 and not workers.overlaps


@on(*EVERY_BROKER)
def test_run_once_more(workers: Workers):
    workers.start(2)
    first = workers.call("more", gate=workers.key, value=1)
    workers.begun()
    second, third, fourth = (workers.call("more", value=n) for n in (2, 3, 3))
    assert len({first.id, second.id, third.id}) == 3 and fourth.id == third.id
    workers.open()

    assert workers.result(first) == 1 and workers.result(third) == 3
    assert workers.result(second) == 3  # it was replaced by newer arguments, and ends as that one does
    assert [line["value"] for line in workers.begun(2)] == [1, 3] and not workers.overlaps


@on(*EVERY_BROKER)
def test_one_queued_one_running(workers: Workers):
    workers.start(2)
    first = workers.call("one_and_one", gate=workers.key, value=1)
    workers.begun()
    second, third = workers.call("one_and_one", value=2), workers.call("one_and_one", value=3)
    assert first.id != second.id == third.id
    workers.open()

    assert workers.result(first) == 1 and workers.result(second) == 2
    assert workers.runs == 2 and not workers.overlaps


@on(*EVERY_BROKER)
def test_hold_queued_frees_the_key_when_the_body_starts(workers: Workers):
    workers.start(2)
    first = workers.call("while_queued", gate=workers.key, value=1)
    workers.begun()
    second = workers.call("while_queued", gate=workers.key, value=2)
    assert second.id != first.id
    workers.begun(2)  # beside each other
    third = workers.call("while_queued", value=3)
    assert third.id not in (first.id, second.id)
    workers.open()

    assert [workers.result(call) for call in (first, second, third)] == [1, 2, 3]


@on(*EVERY_BROKER)
def test_enforce_false_runs_everything(workers: Workers):
    workers.start(2)
    first = workers.call("counted", gate=workers.key, value=1)
    workers.begun()
    second = workers.call("counted", gate=workers.key, value=2)
    begun = workers.begun(2)
    assert first.id != second.id and all(line["token"] for line in begun)
    workers.open()

    assert [workers.result(first), workers.result(second)] == [1, 2]


@on(*EVERY_BROKER)
def test_a_publisher_without_the_code_leaves_the_claim_to_the_worker(workers: Workers):
    first = workers.call_without_code(gate=workers.key, value=1)
    if workers.queue_name == RQ:  # the workers of Celery are there already
        assert workers.state() is None
    workers.start(2)
    workers.begun()
    assert workers.entry().owner == workers.owner(first)
    second = workers.call(value=2)
    assert second.id == first.id
    third = workers.call_without_code(value=3)
    workers.wait_until_met(third, first)
    workers.open()

    assert workers.result(first) == workers.result(third) == 1 and workers.runs == 1


@on(*EVERY_BROKER)
def test_expired(workers: Workers):
    workers.call_brief(1)
    assert workers.state() == "queued"
    workers.wait_for_state("free", within=10)

    assert workers.runs == 0
    workers.start()
    workers.next_call_runs()
    assert workers.runs == 1
