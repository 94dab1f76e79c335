"""How a body ends, at a real worker: what becomes of its key."""

from __future__ import annotations

from tests.scenarios.conftest import Workers
from tests.scenarios.workers import every_kind


@every_kind
def test_success(workers: Workers):
    workers.start()
    call = workers.call(gate=workers.key, value=42)
    [begin] = workers.begun()
    assert workers.state() == "running" and begin["token"] == workers.entry().token
    workers.open()

    assert workers.result(call) == 42
    assert workers.state() == "done" and workers.entry().how == "succeeded"
    assert workers.entry().owner == workers.owner(call)
    workers.next_call_runs()


@every_kind
def test_failure(workers: Workers):
    workers.start()
    call = workers.call(then="fail")

    assert "TroubleError" in workers.failure(call)
    assert workers.state() == "free"
    workers.next_call_runs()


@every_kind
def test_failure_that_is_kept(workers: Workers):
    workers.start()
    call = workers.call("reused", then="fail")
    assert "TroubleError" in workers.failure(call)
    again = workers.call("reused", then="fail")

    assert again.id == call.id and again.taskguard.state == "done"
    assert "TroubleError" in workers.failure(again)
    assert workers.state("reused") == "done" and workers.runs == 1


@every_kind
def test_retry(workers: Workers):
    """The next body starts when the one that asked for it has cleaned up."""
    workers.start(2)
    call = workers.call_retried(value="second")

    assert workers.result(call) == "second"
    first, second = workers.begun(2)
    assert workers.runs == 2 and not workers.overlaps
    assert second["token"] > first["token"]
    assert [first["starts"], second["starts"]] == [1, 1]  # a retry is not a death
    assert workers.state() == "done"
