"""Another copy of a job's message: before its end, and after it."""

from __future__ import annotations

import pytest

from tests.scenarios.queues import Queue


@pytest.mark.parametrize("plain", [False, True], ids=["", "plain worker"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_leftover_copy_of_an_ended_job_changes_nothing(queue: Queue, fails: bool, plain: bool):
    call = queue.function(lambda: 1 // (not fails)).call(1)
    queue.work()
    ended = queue.outcome(call)
    queue.copy(call)
    queue.work(plain=plain)

    assert queue.outcome(call).status == ended.status == ("failed" if fails else "finished")
    assert queue.outcome(call).value == ended.value and len(queue.ran) == 1 and queue.ids == []


def test_a_copy_of_a_running_job_is_deferred(queue: Queue):
    """Neither beside it, nor dropped: should that run die, the copy is all that is left."""
    left: list[list[str]] = []

    def meet() -> str:
        if not left:
            queue.copy(call)
            queue.work(1)
            left.append(queue.ids)
        return "once"

    function = queue.function(meet)
    call = function.call(1)
    queue.work(1)
    assert set(left[0]) == {call.id} and len(queue.ran) == 1 and queue.outcome(call).value == "once"
    queue.work()

    assert len(queue.ran) == 1 and queue.outcome(call).value == "once" and queue.ids == []
