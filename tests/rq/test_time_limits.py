"""A job timeout that comes while the guard itself is at work: an alarm of RQ's own."""

from __future__ import annotations

import time
from typing import Any

import pytest

from taskguard.stores.redis import RedisStore
from tests.rq import jobs
from tests.rq.scene import Scene


@pytest.mark.parametrize(("retry", "state", "status"), [(None, "free", "failed"), (1, "done", "finished")])
def test_a_job_whose_alarm_rings_before_it_has_the_answer_to_its_claim(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, retry: int | None, state: str, status: str
):
    """Whether the key was granted is not known to it: so it says that it is over, and its retry need not wait."""
    claim, asked = RedisStore.claim, []

    def slow(store: RedisStore, question: Any) -> Any:
        answer = claim(store, question)
        if question.state == "running" and not asked:
            asked.append(question)
            time.sleep(30)
        return answer

    monkeypatch.setattr(RedisStore, "claim", slow)
    job = scene.call(job_timeout=1, retry=jobs.Retry(max=retry) if retry else None)
    scene.work()

    assert scene.status(job) == status and scene.state() == state
