"""A process that is forked inside a held block: what it does there changes nothing for its parent."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest

from taskguard import DuplicateTaskError, Fence, Guard, LeaseLostError, current_fence
from taskguard.engine.work import Work
from taskguard.protocol.policy import Policy
from taskguard.protocol.store import Held, Lease
from taskguard.testing.contract import ask
from tests.children import in_fork

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture
def shared(store_url: str) -> Guard:
    """A guard on a store that the processes share."""
    return Guard(store_url, namespace=uuid4().hex, listeners=[], history=False)


class LeftEarly(Exception):  # noqa: N818 - it is no error
    pass


def falls_out() -> None:
    pass


def raises() -> None:
    raise LeftEarly


def exits() -> None:
    raise SystemExit(3)


def is_gone_at_once() -> None:
    os._exit(0)


def in_child(forked: Callable[[Callable[[], None]], None], leave: Callable[[], None]) -> None:
    """Call *forked* with what forks; its child leaves as *leave* does, and is not heard of again."""
    parent = os.getpid()

    def fork() -> None:
        child = os.fork()
        if child == 0:
            leave()
        else:
            os.waitpid(child, 0)

    try:
        forked(fork)
    finally:
        if os.getpid() != parent:
            os._exit(0)


WAYS = pytest.mark.parametrize("leave", [falls_out, raises, exits, is_gone_at_once], ids=lambda way: way.__name__)


@WAYS
def test_a_child_that_leaves_the_block_does_not_end_its_parents_hold(shared: Guard, leave: Callable[[], None]):
    def forked(fork: Callable[[], None]) -> None:
        with shared.hold("key", lease=30) as fence:
            fork()

            assert isinstance(shared.store.claim(ask("stranger")), Held)
            fence.check()

    in_child(forked, leave)
    assert isinstance(shared.store.claim(ask("stranger")), Lease)


@WAYS
def test_a_child_that_leaves_the_function_does_not_end_its_parents_run(shared: Guard, leave: Callable[[], None]):
    parent = os.getpid()

    def forked(fork: Callable[[], None]) -> None:
        def function() -> str:
            fork()
            assert isinstance(shared.store.claim(ask("stranger")), Held)
            return "the parent's" if os.getpid() == parent else "the child's"

        assert shared.run("key", function, keep_for=60) == "the parent's"
        assert shared.run("key", lambda: "run again", keep_for=60) == "the parent's"

    in_child(forked, leave)


def target() -> None:
    fence = current_fence()
    assert fence is not None
    assert fence.unsure


def test_a_child_of_multiprocessing_does_not_end_its_parents_hold(shared: Guard):
    with shared.hold("key") as fence:
        child = multiprocessing.get_context("fork").Process(target=target)
        child.start()
        child.join()

        assert child.exitcode == 0
        assert isinstance(shared.store.claim(ask("stranger")), Held)
        fence.check()


def test_in_a_store_of_one_process_the_child_has_a_copy_in_which_the_parent_goes_on(guard: Guard):
    def attempt() -> str:
        with guard.hold("key"):
            return "entered"

    with guard.hold("key"):
        with pytest.raises(AssertionError, match="DuplicateTaskError"):
            in_fork(attempt)
        assert guard.store.get("key") is not None


def test_a_child_sees_that_the_lease_is_its_parents(guard: Guard):
    parent = os.getpid()

    def seen(fence: Fence) -> tuple[Any, ...]:
        with pytest.raises(LeaseLostError) as caught:
            fence.check()
        return fence.lost, fence.unsure, fence.remaining, caught.value.process, str(caught.value)

    with guard.hold("key", lease=60) as fence:
        lost, unsure, remaining, process, text = in_fork(lambda: seen(fence))
        fence.check()

    assert (lost, unsure, remaining, process) == (False, True, 0.0, parent)
    assert f"belongs to process {parent}" in text


def test_a_child_that_falls_out_of_the_block_is_told_that_it_held_nothing(guard: Guard):
    parent = os.getpid()
    reader, writer = os.pipe()

    def fork() -> None:
        if os.fork() == 0:
            return
        os.wait()

    try:
        with guard.hold("key"):
            fork()
    except LeaseLostError as error:
        os.write(writer, pickle.dumps(error))
        os._exit(0)
    finally:
        if os.getpid() != parent:
            os._exit(1)

    error = pickle.loads(os.read(reader, 4096))
    assert (error.key, error.process) == ("key", parent)


def test_a_child_that_wants_to_go_on_is_not_told(guard: Guard):
    parent = os.getpid()
    with guard.hold("key", on_lost="continue"):
        child = os.fork()
    if os.getpid() != parent:
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_child_that_asks_for_its_parents_key_finds_it_held(shared: Guard):
    def attempt() -> str:
        with suppress(DuplicateTaskError), shared.hold("key"):
            return "entered"
        return "held"

    with shared.hold("key"):
        assert in_fork(attempt) == "held"


@pytest.mark.parametrize(
    "end",
    [
        lambda work: work.succeed("value"),
        lambda work: work.fail(ValueError()),
        lambda work: work.release(),
        lambda work: work.requeue(60, copy_for=60),
        lambda work: work.give_up(),
        lambda work: work.abandon(),
    ],
    ids=["succeed", "fail", "release", "requeue", "give up", "abandon"],
)
def test_no_end_of_work_reaches_the_store_from_a_child(shared: Guard, end: Callable[[Work], object]):
    policy = Policy.of(lease=30, on_done="reuse", keep_for=60)
    work = shared.begin(shared.new_claim("key", "job", policy), policy)
    assert isinstance(work, Work)
    with work:
        assert not in_fork(lambda: end(work))

        entry = shared.store.get("key")
        assert entry is not None
        assert (entry.state, entry.token) == ("running", work.lease.token)
    assert work.succeed("value")


def test_work_that_is_begun_before_a_fork_is_not_renewed_by_the_child(shared: Guard):
    policy = Policy.of(lease=30)
    work = shared.begin(shared.new_claim("key", "job", policy), policy)
    assert isinstance(work, Work)

    def body() -> int:
        with work:
            return len(shared.heartbeat._all())

    assert in_fork(body) == 0
    work.release()
