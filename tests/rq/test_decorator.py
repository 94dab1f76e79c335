"""What a job can be made of, and what is refused while it is made."""

from __future__ import annotations

import asyncio
import inspect
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from rq import Queue, Retry, SimpleWorker
from rq.decorators import job
from rq.serializers import DefaultSerializer, JSONSerializer

from taskguard import ConfigurationError, Fence, current_fence
from taskguard.engine.envelope import Envelope
from taskguard.protocol.outcomes import NotKept
from taskguard.rq import CallInfo, GuardedQueue, singleton_task
from taskguard.rq.job_metadata import read, written
from taskguard.rq.outcomes import QueueOutcomes
from taskguard.rq.owner import job_id_of, owner_of, shown
from taskguard.rq.queue import claiming
from tests.rq import jobs
from tests.rq.scene import OURS, ROOT, Scene

nowhere = redis.Redis(port=1)


@singleton_task
def bare(a: int, fence: Fence | None = None) -> Any:
    return a, fence


@singleton_task(key="a", retry=Retry(max=2), timeout=77, result_ttl=5)
def with_options(a: int) -> int:
    return a


class Shop:
    @singleton_task(key="order")
    def charge(self, order: int) -> int:
        return order


queue_of_others = Queue("others", connection=nowhere)


@singleton_task(queue=queue_of_others, key="a")
def elsewhere(a: int) -> int:
    return a


@singleton_task(queue="named", connection=nowhere)
def named(a: int) -> int:
    return a


def test_a_bare_decorator_is_enough(scene: Scene):
    job = scene.queue.enqueue(bare, 1)

    assert scene.queue.enqueue(bare, a=1).id == job.id
    assert isinstance(job.taskguard, CallInfo)


@singleton_task(key="a")
async def later(a: int, fence: Fence) -> Fence:
    return fence


def test_a_direct_call_is_not_guarded_and_has_a_fence_that_says_so():
    one, other = bare(1)[1], bare(1)[1]

    one.check()
    assert one.unguarded and "unguarded" in repr(one) and current_fence() is None
    assert one.key == bare.taskguard.key(1)
    assert one.token < other.token and one.idempotency_key != other.idempotency_key
    assert asyncio.run(later(1)).unguarded


def test_a_direct_call_names_its_parameters_as_ever():
    assert list(inspect.signature(bare).parameters) == ["a"]
    with pytest.raises(TypeError, match="the guard passes 'fence'"):
        bare(1, fence=None)


def test_it_has_rqs_own_ways_to_enqueue(scene: Scene):
    elsewhere.taskguard._queue = Queue(scene.queue.name, connection=scene.connection)
    job = elsewhere.enqueue(1)

    assert elsewhere.delay(1).id == job.id
    assert elsewhere.enqueue_in(timedelta(hours=1), 2).get_status() == "scheduled"
    assert elsewhere.taskguard.get(1).state == "queued"
    assert elsewhere.taskguard.release(1) and elsewhere.taskguard.get(1).state == "free"


def test_options_that_are_rqs_go_to_rq(scene: Scene):
    with_options.taskguard._queue = scene.queue
    job = with_options.enqueue(1)
    other = with_options.enqueue(2, result_ttl=9, job_timeout=3)

    assert (job.retries_left, job.timeout, job.result_ttl) == (2, 77, 5)
    assert (other.retries_left, other.timeout, other.result_ttl) == (2, 3, 9)


def test_the_queue_that_was_given_stays_as_it_is():
    made = claiming(elsewhere.taskguard.destination)

    assert isinstance(made, GuardedQueue) and type(queue_of_others) is Queue
    assert named.taskguard.destination.name == "named"


def test_a_method_of_an_object(scene: Scene):
    scene.queue.enqueue(Shop().charge, 1)

    assert scene.queue.enqueue(Shop().charge, order=1).taskguard.duplicate


def test_without_a_queue_it_says_what_to_write():
    with pytest.raises(ConfigurationError, match="queue=…, connection=…"):
        bare.enqueue(1)
    with pytest.raises(ConfigurationError, match="needs its connection"):
        singleton_task(queue="default")


def test_a_function_that_a_worker_would_not_find_is_refused(scene: Scene):
    def hidden(a: int) -> int:
        return a

    with pytest.raises(ConfigurationError, match="would not find the guarded function"):
        scene.queue.enqueue(singleton_task(hidden), 1)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"leese": 3}, "did you mean lease"),
        ({"ley": "a"}, "did you mean key"),
        ({"unique_on": ["a"]}, "unique_on is an option of celery-singleton; write key='a'"),
        ({"once": {"keys": ["a"], "graceful": True}}, "write key='a', on_conflict='skip'"),
        ({"lock_expiry": 60}, "leave it out"),
        ({"retries": 3}, "did you mean retry"),
        ({"xyz": 3}, "write one of: key, hold, on_conflict, .* store, .* or an option of RQ's"),
        ({"debounce": 1}, "there is no option debounce"),
        ({"on_conflict": "cancel_running"}, "is not known"),
        ({"on_done": "reuse"}, "keep_for"),
        ({"queued_for": True}, "must be a positive number of seconds"),
        ({"on_store_error": "ignore"}, "write retry, fail or run_unguarded"),
        ({"listeners": print}, "must be a list of functions"),
        ({"listeners": ["print"]}, "must be a list of functions"),
        ({"namespace": ""}, "namespace must be a non-empty string"),
        ({"namespace": 3}, "namespace must be a non-empty string"),
        ({"store": 3}, "store must be the URL of a store"),
        ({"key": "nothing"}, "not a parameter"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], problem: str):
    def job(a: int) -> int:
        return a

    with pytest.raises(ConfigurationError, match=problem):
        singleton_task(**options)(job)


@pytest.mark.parametrize(
    "options", ["on_dnoe='reuse_success'", "on_conflict='cancel_running'", "hold='always'", "lease=-1"]
)
def test_what_only_a_work_horse_ever_imports_is_refused_too(scene: Scene, tmp_path: Path, options: str):
    code = f"from taskguard.rq import singleton_task\n@singleton_task({options})\ndef charge(): raise AssertionError\n"
    (tmp_path / "only_there.py").write_text(code)
    job = Queue(scene.queue.name, connection=scene.connection).enqueue("only_there.charge")
    scene.start_worker(OURS, environment={"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"})

    scene.wait_for_status(job, "failed")
    assert "ConfigurationError" in scene.fetch(job).latest_result().exc_string


def test_a_connection_over_which_rq_cannot_read_its_jobs_is_refused(scene: Scene):
    with redis.Redis.from_url(scene.url, decode_responses=True) as connection:
        queue = GuardedQueue(scene.queue.name, connection=connection)

        with pytest.raises(ConfigurationError, match="without it"):
            queue.enqueue(jobs.job_, scene.key)


def test_what_rqs_own_decorator_was_given_is_not_dropped():
    def plain(a: int) -> int:
        return a

    with pytest.raises(ConfigurationError, match="would ignore the options of @job"):
        singleton_task(key="a")(job("low", connection=nowhere, timeout=5)(plain))


def test_it_is_not_put_over_itself():
    with pytest.raises(ConfigurationError, match="guarded already"):
        singleton_task(key="a")(bare)


@job(f"under-{os.getpid()}", connection=nowhere)
@singleton_task(key="a")
def under_rqs_own(a: int) -> str:
    fence = current_fence()
    assert fence is not None
    return fence.key


def test_under_rqs_own_decorator_it_is_guarded_by_the_worker(scene: Scene):
    queued = Queue(scene.queue.name, connection=scene.connection).enqueue(under_rqs_own, 1)
    SimpleWorker([scene.queue], connection=scene.connection).work(burst=True)

    assert queued.return_value() == under_rqs_own.taskguard.key(1)


def test_what_is_no_function_is_refused():
    def generator():
        yield 1

    for what in (generator, Shop, "default"):
        with pytest.raises(ConfigurationError):
            singleton_task(what)


# -- the small parts ---------------------------------------------------------------------------------------------------


def test_a_note_is_read_as_it_was_written():
    note = Envelope(key="k", join="rq:two", since=1.5)

    assert read(written(note)) == note and read(None) == Envelope()
    assert note.as_new() == Envelope(key="k")


def test_an_owner_names_its_job():
    assert owner_of("id", None) == "rq:id" and owner_of("id", 0, "run") == "rq:id:run:repeat-0"
    assert job_id_of("rq:id:run:repeat-0") == "id" and job_id_of("id") == ""
    assert shown("rq:id") == "id" and shown("of-celery") == "of-celery"


def test_outcomes_are_json_where_that_is_exact():
    outcomes = QueueOutcomes(DefaultSerializer)
    for value in (None, 1, "ü", [1.5, {"a": None}], True):
        assert outcomes.encode(value).startswith(b"application/json\n")
        assert outcomes.decode(outcomes.encode(value)) == value
    for value in ((1,), {1: 2}, {1, 2}, float("inf")):
        assert not outcomes.encode(value).startswith(b"application/json\n")
        assert outcomes.decode(outcomes.encode(value)) == value
    with pytest.raises(NotKept):
        outcomes.encode(lambda: 1)
    with pytest.raises(NotKept):
        outcomes.encode("x" * 70_000)


def test_a_queue_that_uses_no_pickle_reads_none():
    pickled = QueueOutcomes(DefaultSerializer).encode((1, 2))

    with pytest.raises(NotKept, match="another serializer"):
        QueueOutcomes(JSONSerializer).decode(pickled)


def test_a_failure_is_kept_in_words():
    outcomes = QueueOutcomes(DefaultSerializer)

    assert outcomes.decode_error(outcomes.encode_error(ValueError("no"))) == "builtins.ValueError: no"


def test_every_public_name_can_be_had_and_no_other():
    import taskguard.rq

    assert all(getattr(taskguard.rq, name) is not None for name in taskguard.rq.__all__)
    assert set(taskguard.rq.__all__) <= set(dir(taskguard.rq))
    with pytest.raises(AttributeError, match="no attribute 'GaurdedQueue'"):
        _ = taskguard.rq.GaurdedQueue
