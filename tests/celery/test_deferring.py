"""How a job is published again that must wait: where, when, and in which form."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from kombu import Exchange, Queue

from .inprocess import deliver, guarded, make_app, sent


def test_a_message_in_another_serializer_is_put_back_in_it(make_scene):
    scene = make_scene(conf={"accept_content": ["json", "pickle"]})
    scene.fleet.start_worker(environment={"C_FORCE_ROOT": "1"})
    scene.call("while_running", gate="gate", value=1)
    scene.begun()
    second = scene.job("while_running").apply_async((scene.key,), {"value": {1, 2}}, serializer="pickle")
    scene.fleet.workers[0].wait_for_log(f"owner {second.id}, holder ")
    scene.gate.open()
    assert second.get(timeout=20) == 1


@pytest.mark.parametrize(("exchange_type", "for_a_second"), [("topic", True), ("direct", False)])
def test_it_is_put_back_for_a_second_where_rabbitmq_itself_delays(exchange_type, for_a_second):
    app = make_app()
    quorum = {"x-queue-type": "quorum"}
    own = Queue(app.conf.task_default_queue)
    app.conf.task_queues = [own, Queue("other", Exchange("other", exchange_type), queue_arguments=quorum)]

    @guarded(app)
    def add(a):
        return a

    task = app.tasks[add.name]
    guard = task.taskguard.app_guard.guard
    guard.ask(guard.new_claim(task.taskguard.key(1), "twin", task.taskguard.policy))
    before = datetime.now(timezone.utc)
    deliver(task, "put back", 1)
    eta = datetime.fromisoformat(sent(app)[0].headers["eta"])
    assert (eta >= before + timedelta(seconds=1)) is for_a_second
