"""What each event does to an entry: with a worker that goes on afterwards, on every broker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import MaxRetriesExceededError, SoftTimeLimitExceeded, TaskRevokedError, TimeLimitExceeded
from kombu.exceptions import EncodeError

from tests.celery.conftest import FLEETS
from tests.celery.fleet import Fleet
from tests.celery.haste import ENVIRONMENT as HASTE
from tests.celery.jobs import TroubleError
from tests.celery.marks import needs_quorum_queues
from tests.celery.scene import Scene
from tests.ledger import lives
from tests.servers import durable_redis
from tests.waiting import wait_until

BROKERS = ["redis", "rabbitmq", pytest.param("rabbitmq-quorum", marks=needs_quorum_queues)]


@pytest.fixture(scope="module", params=BROKERS)
def shared(request: Any, docker_client: Any, tmp_path_factory: Any) -> Iterator[tuple[Fleet, Any]]:
    """One worker for all tests of this file: none of them ends it."""
    directory = tmp_path_factory.mktemp("fleet")
    broker = request.param
    rabbitmq = request.getfixturevalue("rabbitmq_server") if broker != "redis" else None
    with ExitStack() as stack:
        redis = stack.enter_context(closing(durable_redis()))
        fleet = Fleet(docker_client, redis, rabbitmq, directory, broker=broker, backend="redis", conf={})
        stack.enter_context(closing(fleet))
        fleet.start_worker(concurrency=3, options=["-E"], environment=HASTE)
        yield fleet, directory


@pytest.fixture
def scene(shared: Any, request: Any, monkeypatch: Any) -> Scene:
    fleet, directory = shared
    request.node.stash[FLEETS] = [fleet]
    return Scene(fleet, directory)


# -- how a body ends ---------------------------------------------------------------------------------------------


def test_a_result_that_cannot_be_written_is_a_failure_here_too(scene):
    result = scene.call("reused_if_successful", then="return what cannot be written")
    with pytest.raises(EncodeError):
        result.get(timeout=20)
    assert scene.state("reused_if_successful") == "free"


def test_a_large_result_is_reused_though_it_is_not_stored(scene):
    first = scene.call("reused_unheard", value="x" * 2000)
    scene.wait_for_state("done", name="reused_unheard")
    again = scene.call("reused_unheard")
    assert again.taskguard.owner == first.id
    assert again.get(timeout=20) == "x" * 2000


def test_ignore(scene):
    scene.call(then="ignore")
    scene.wait_for_state("free")
    scene.next_call_runs()


def test_reject(scene):
    scene.call(then="reject")
    scene.begun()
    scene.wait_for_state("free")
    scene.next_call_runs()


def test_reject_and_requeue(scene):
    result = scene.call(then="reject and requeue once", value=3)
    assert result.get(timeout=20) == 3
    assert scene.runs == 2
    assert not scene.overlaps
    assert scene.state() == "done"


def test_reject_and_requeue_of_a_job_that_was_acknowledged_early_frees_its_key(scene):
    result = scene.call("early", then="reject and requeue once")
    scene.ledger.wait_for("requeued", task_id=result.id)
    scene.wait_for_state("free", name="early")
    scene.next_call_runs("early")


def test_a_retry_that_is_not_thrown(scene):
    result = scene.call(then="retry and return", value="second")
    assert result.get(timeout=20) in ("first", "second")  # as without a guard: both are stored, in any order
    wait_until(lambda: scene.runs == 2)
    scene.wait_for_state("done")
    assert not scene.overlaps


def test_a_failure_after_a_retry_was_asked_for_still_retries(scene):
    scene.call(then="retry and fail")
    scene.begun(2)
    scene.wait_for_state("done")
    assert not scene.overlaps


def test_autoretry(scene):
    result = scene.call("auto", then="fail")
    with pytest.raises(TroubleError):
        result.get(timeout=20)
    assert [line["retries"] for line in scene.begun(2)] == [0, 1]
    assert not scene.overlaps
    assert scene.state("auto") == "free"


def test_max_retries_exceeded(scene):
    result = scene.call(then="retry for ever")
    with pytest.raises(MaxRetriesExceededError):
        result.get(timeout=20)
    assert scene.runs == 2
    assert scene.state() == "free"
    scene.next_call_runs()


def test_a_retry_that_cannot_be_written_fails(scene):
    result = scene.call(then="retry with what cannot be written")
    with pytest.raises(EncodeError):
        result.get(timeout=20)
    assert scene.runs == 1
    assert scene.state() == "free"


def test_soft_time_limit(scene):
    result = scene.call(then="clean up slowly", soft_time_limit=1)
    with pytest.raises(SoftTimeLimitExceeded):
        result.get(timeout=20)
    assert scene.state() == "free"
    caught = scene.call(then="catch the soft limit", soft_time_limit=1)
    assert caught.get(timeout=20) == "caught"
    assert scene.state() == "done"


def test_hard_time_limit(scene):
    result = scene.call(then="clean up slowly", time_limit=1)
    child = scene.begun()[0]["pid"]
    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=20)
    # The limit is announced before the process is gone, and its clean-up may still run: no other body meanwhile.
    scene.wait_for_state("free")
    assert not lives(child)
    scene.next_call_runs()


def test_revoked_while_queued(scene):
    result = scene.call(countdown=2)
    result.revoke()
    with pytest.raises(TaskRevokedError):
        result.get(timeout=20)
    scene.wait_for_state("free")  # when the worker comes to it
    assert scene.runs == 0
    scene.next_call_runs()


def test_revoked_while_running(scene):
    result = scene.call(gate=scene.key, value=1)
    scene.begun()
    result.revoke()
    assert scene.call().id == result.id
    scene.gate.open(scene.key)
    scene.ended()
    scene.wait_for_state("done")
    scene.next_call_runs()


def test_revoked_with_terminate(scene):
    result = scene.call(then="clean up slowly")
    scene.begun()
    result.revoke(terminate=True)
    scene.ledger.wait_for("cleaning up", task_id=result.id)
    assert scene.state() == "running"  # told to end, and not yet gone
    scene.ledger.wait_for("cleaned up", task_id=result.id)
    scene.wait_for_state("free")
    scene.next_call_runs()
    assert not scene.overlaps


def test_an_expired_job_is_told_as_revoked(scene):
    moment = datetime.now(timezone.utc) + timedelta(seconds=1)
    result = scene.call(expires=moment, countdown=2)
    if scene.fleet.rabbitmq is None:  # RabbitMQ drops it by itself, and nobody is told
        with pytest.raises(TaskRevokedError):
            result.get(timeout=20)
    scene.wait_for_state("free")
    if scene.fleet.rabbitmq is None:
        assert scene.entry().how == "expired"  # it did not only run out
    assert scene.runs == 0
    scene.next_call_runs()


def test_replaced_by_the_same_key(scene):
    result = scene.call(then="replace by itself")
    assert result.get(timeout=20) == "replaced"
    assert scene.runs == 2
    assert not scene.overlaps
    scene.wait_for_state("done")


def test_replaced_by_another_task(scene):
    result = scene.call(then="replace by another")
    assert result.get(timeout=20) == "another"
    scene.wait_for_state("free")  # the other one may end before this one's parent has heard
    assert scene.state(key=f"{scene.key}-other") == "done"
    scene.next_call_runs()


# -- a live twin -------------------------------------------------------------------------------------------------


def test_a_duplicate_gets_the_result_of_its_twin(scene):
    first = scene.call(gate=scene.key, value=7)
    scene.begun()
    second = scene.call(value=8)
    assert second.id == first.id
    assert second.taskguard.state == "running"
    scene.gate.open(scene.key)
    assert second.get(timeout=20) == 7
    assert scene.runs == 1


def test_a_job_that_was_published_beside_its_twin_joins_it(scene):
    first = scene.call(gate=scene.key, value=7)
    scene.begun()
    second = scene.call(value=8, task_id=f"second-{scene.key}")
    third = scene.call(value=9, task_id=f"third-{scene.key}")
    assert second.id != first.id
    scene.gate.open(scene.key)
    assert second.get(timeout=20) == third.get(timeout=20) == 7
    assert scene.runs == 1


@pytest.mark.parametrize("then", ["return", "fail"])
def test_another_copy_of_the_first_message_of_a_job_that_joined_does_not_run(scene, then):
    scene.call("while_running", then, gate=scene.key, value=7)
    scene.begun()
    second = scene.call("while_running", value=8, task_id=f"second-{scene.key}")
    worker = scene.fleet.workers[0]
    worker.wait_for_log(f"[{second.id}] ignored")  # it was put back, and joins
    scene.gate.open(scene.key)
    result = second.get(timeout=20, propagate=False)
    answered = worker.log().count(f"[{second.id}] ignored")
    scene.call("while_running", value=9, task_id=second.id)  # nothing is claimed at the call, so it is published
    wait_until(lambda: worker.log().count(f"[{second.id}] ignored") > answered)
    assert scene.runs == 1
    assert repr(second.get(timeout=20, propagate=False)) == repr(result)


def test_a_job_that_was_published_beside_its_twin_fails_as_that_does(scene):
    scene.call(then="fail", gate=scene.key)
    scene.begun()
    second = scene.call(task_id=f"second-{scene.key}")
    scene.gate.open(scene.key)
    with pytest.raises(TroubleError):
        second.get(timeout=20)
    assert scene.runs == 1


def test_a_job_that_was_published_beside_its_twin_takes_its_place_if_that_was_ignored(scene):
    scene.call(then="ignore", gate=scene.key)
    scene.begun()
    second = scene.call(value="mine", task_id=f"second-{scene.key}")
    scene.gate.open(scene.key)
    assert second.get(timeout=20) == "mine"
    assert scene.runs == 2


def test_a_job_that_nobody_waits_for_is_dropped(scene):
    scene.call("unheard", gate=scene.key)
    scene.begun()
    scene.call("unheard", task_id=f"second-{scene.key}")
    worker = scene.fleet.workers[0]
    worker.wait_for_log(f"owner second-{scene.key}, holder ")
    scene.gate.open(scene.key)
    scene.wait_for_state("done", name="unheard")
    scene.call("unheard", task_id=f"second-{scene.key}")  # it has ended, and stays so
    assert scene.runs == 1


def test_the_newest_arguments_are_the_last_to_run(scene):
    first = scene.call("more", gate=scene.key, value=1)
    scene.begun()
    second = scene.call("more", value=2)
    scene.gate.open(scene.key)
    assert first.get(timeout=20) == 1
    newest = scene.call("more", value=3)  # the key is free, and the second waits for its next look at it
    second.get(timeout=30), newest.get(timeout=30)
    assert scene.begun(2)[-1]["value"] == 3


def test_hold_running_keeps_bodies_apart(scene):
    first = scene.call("while_running", gate=scene.key, value=1)
    scene.begun()
    second = scene.call("while_running", value=2)
    assert second.id != first.id
    scene.fleet.workers[0].wait_for_log(f"owner {second.id}, holder {first.id} (running)")
    scene.gate.open(scene.key)
    assert first.get(timeout=20) == second.get(timeout=20) == 1
    assert scene.runs == 1


# -- canvas ------------------------------------------------------------------------------------------------------


def test_a_chord_with_duplicates_fires(scene):
    job = scene.job("job")
    twin = job.s(scene.key, value=1, gate=scene.key)
    result = chord([twin, twin.clone(), job.s(f"{scene.key}-2", value=5)], scene.fleet.tasks.total.s()).apply_async()
    scene.gate.open(scene.key)
    assert result.get(timeout=20) == 7
    assert scene.runs == 1


def test_a_chord_whose_twin_fails_fails(scene):
    job = scene.job("job")
    scene.call(then="fail", gate=scene.key)
    scene.begun()
    result = chord([job.s(scene.key), job.s(f"{scene.key}-2", value=5)], scene.fleet.tasks.total.s()).apply_async()
    scene.gate.open(scene.key)
    with pytest.raises(Exception, match="failed"):
        result.get(timeout=20)


def test_a_chain_goes_on_with_the_outcome_of_the_twin(scene):
    job = scene.job("job")
    scene.call(gate=scene.key, value=7)
    scene.begun()
    result = chain(job.s(scene.key), scene.fleet.tasks.told.s("step")).apply_async()
    scene.gate.open(scene.key)
    assert result.get(timeout=20) == 7
    assert scene.runs == 1


def test_a_group_with_duplicates_ends(scene):
    job = scene.job("job")
    result = group(job.s(scene.key, value=3, gate=scene.key) for _ in range(3)).apply_async()
    scene.gate.open(scene.key)
    assert result.get(timeout=20) == [3, 3, 3]
    assert scene.runs == 1


def test_links_of_a_joined_job_are_called_with_its_twins_outcome(scene):
    told = scene.fleet.tasks.told
    scene.call(gate=scene.key, value=7)
    scene.begun()
    scene.call(task_id=f"second-{scene.key}", link=told.s(scene.key))
    scene.gate.open(scene.key)
    wait_until(lambda: scene.ledger.lines("told", given=["7", repr(scene.key)]))


def test_link_error_is_called_once(scene):
    told = scene.fleet.tasks.told
    result = scene.call(then="fail", link_error=told.si(scene.key))
    with pytest.raises(TroubleError):
        result.get(timeout=20)
    wait_until(lambda: scene.ledger.lines("told", given=[repr(scene.key)]))
    assert len(scene.ledger.lines("told", given=[repr(scene.key)])) == 1


def test_items_of_map_starmap_and_chunks_are_guarded(scene):
    job = scene.job("job")
    scene.call(gate=scene.key, value=7)
    scene.begun()
    mapped = job.map([scene.key, f"{scene.key}-2"]).apply_async()
    starred = job.starmap([(scene.key,)]).apply_async()
    for waiting in (mapped, starred):
        scene.fleet.workers[0].wait_for_log(f"owner {waiting.id}:item:0, holder ")
    scene.gate.open(scene.key)
    assert mapped.get(timeout=20) == [7, None]
    assert starred.get(timeout=20) == [7]
    assert scene.runs == 1
    assert job.chunks([(f"{scene.key}-3",), (f"{scene.key}-3",)], 1).apply_async().get(timeout=20) == [[None], [None]]
    assert not scene.ledger.overlaps(f"{scene.key}-3")


# -- what is left over -------------------------------------------------------------------------------------------


def copy_of(scene: Scene, result: Any, **options: Any) -> None:
    """Another copy of a job's message, as a broker leaves it that delivers twice."""
    scene.fleet.app._taskguard.send(
        "job", (scene.key, options.pop("then", "return")), options.pop("kwargs", {}), task_id=result.id, **options
    )


def settled(scene: Scene, times: int, result: Any) -> None:
    text = f"Task job[{result.id}] ignored"
    wait_until(lambda: scene.fleet.workers[0].log().count(text) >= times, what=text)


def test_a_leftover_copy_of_a_finished_job_is_dropped(scene):
    result = scene.call(value=7)
    assert result.get(timeout=20) == 7
    copy_of(scene, result)
    settled(scene, 1, result)
    assert scene.runs == 1
    assert result.status == "SUCCESS"
    assert scene.fleet.app.AsyncResult(result.id).result == 7
    assert scene.fleet.workers[0].log().count(f"Task job[{result.id}] succeeded") == 1


def test_a_leftover_copy_of_a_failed_job_is_dropped(scene):
    result = scene.call(then="fail")
    with pytest.raises(TroubleError):
        result.get(timeout=20)
    copy_of(scene, result, then="fail")
    settled(scene, 1, result)
    assert scene.runs == 1
    assert scene.fleet.app.AsyncResult(result.id).status == "FAILURE"
    assert scene.fleet.workers[0].log().count(f"Task job[{result.id}] raised") == 1


def test_a_leftover_copy_of_a_job_with_a_chain_calls_nothing_again(scene):
    told = scene.fleet.tasks.told
    result = scene.call(value=7, link=told.s(scene.key))
    assert result.get(timeout=20) == 7
    wait_until(lambda: scene.ledger.lines("told", given=["7", repr(scene.key)]))
    copy_of(scene, result, link=[told.s(scene.key)])
    settled(scene, 1, result)
    assert scene.runs == 1
    assert len(scene.ledger.lines("told", given=["7", repr(scene.key)])) == 1


def test_started_is_told_after_the_claim(scene):
    result = scene.call("tracked", gate=scene.key, value=1)
    scene.begun()
    wait_until(lambda: result.status == "STARTED")
    assert result.info["pid"] == scene.begun()[0]["pid"]
    scene.gate.open(scene.key)
    assert result.get(timeout=20) == 1


def test_celerys_events_tell_of_duplicates(scene):
    with watching(scene.fleet.app, "task-duplicate") as seen:
        first = scene.call(gate=scene.key)
        scene.begun()
        scene.call(task_id=f"second-{scene.key}")
        wait_until(lambda: seen)
    scene.gate.open(scene.key)
    assert seen[0]["uuid"] == f"second-{scene.key}"
    assert seen[0]["name"] == "job"
    assert seen[0]["holder"] == first.id
    assert seen[0]["key"] == scene.job("job").taskguard.key(scene.key)


@contextmanager
def watching(app: Any, kind: str) -> Iterator[list[Any]]:
    """The events of that kind, from now on."""
    seen: list[Any] = []
    listens = threading.Event()
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={kind: seen.append})
        receiver.on_consume_ready = lambda *args, **options: listens.set()
        thread = threading.Thread(target=lambda: list(receiver.itercapture(limit=None, timeout=None, wakeup=False)))
        thread.start()
        assert listens.wait(10)
        try:
            yield seen
        finally:
            receiver.should_stop = True
            thread.join(10)
