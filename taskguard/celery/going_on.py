"""How a job goes on when its body has unwound: by the messages that were held back, a retry or a replacement.

A retry never starts beside the body that asked for it: its message leaves when the lease has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kombu.exceptions import OperationalError

from taskguard.celery.call import Call
from taskguard.celery.delivery import Delivery
from taskguard.celery.ending import requeue, settled
from taskguard.errors import StoreError
from taskguard.guard import new_attempt
from taskguard.places import run_of
from taskguard.work import Work


def go_on_elsewhere(it: Delivery, work: Work) -> None:
    """The body has unwound, and the job goes on as another message, or not at all."""
    same = [call for call in it.held_back if _is_this_job(it, call)]
    for call in it.held_back:
        if call not in same:
            # Replaced by other work under this id. It is published before this job ends: if the worker dies between,
            # the body runs again and publishes the same id again, which is recognised.
            _send(it, it.guarding.app.send_task, call)
    headers = it.message.headers.as_new().with_(copy=new_attempt())
    if same:
        # By name: an older copy of the message would start it at once, and not know which retry it is.
        settled(it, lambda: requeue(it, work, same[0], copy=headers.copy))
    elif it.request.is_eager or it.replaced_by_itself:
        settled(it, work.release)
    else:
        settled(it, lambda: work.release("ignored"))
    for call in same:
        _send(it, it.guarding.send, call.with_(headers), work)


def _is_this_job(it: Delivery, call: Call) -> bool:
    """Whether it is a retry, or a replacement by the same key."""
    if call.headers.key:
        return call.headers.key == it.key
    if call.name == it.task.name and call.options.get("retries", 0) > it.request.retries:
        return True
    guarded = getattr(call.options.get("task_type"), "taskguard", None)
    if guarded is None:
        return False
    with suppress(TypeError):
        key = guarded.keys(call.args or (), call.kwargs or {})
        return bool(run_of(guarded.policy, key, it.id) == it.name)
    return False


def _send(it: Delivery, send: Callable[..., Any], call: Call, requeued: Work | None = None) -> None:
    try:
        send(call.name, call.args, call.kwargs, **call.options)
    except OperationalError as error:
        if requeued is not None and it.task.acks_late:
            _expect_the_old_message(it, requeued)
        elif requeued is not None:
            it.leave_failure(error)
        it.message.give_back(error)
    except Exception as error:  # it cannot be written, say, and never will be: the job ends here
        it.leave_failure(error)
        raise


def _expect_the_old_message(it: Delivery, work: Work) -> None:
    """The one that was named did not leave: the job starts by whichever comes."""
    settings = it.guarding.settings
    with suppress(StoreError):
        it.guard.store.requeue(work.lease, settings.queued_for, copy_for=settings.republish_after)
