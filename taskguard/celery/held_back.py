"""Messages under a running job's own id: a retry or a replacement. They are sent when the body has unwound.

A retry never runs beside the body that called `retry()`: its message is sent once the lease has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from celery.utils.time import maybe_make_aware
from kombu.exceptions import OperationalError

from taskguard.celery.headers import Call
from taskguard.engine.effects import Ended, GoOn
from taskguard.errors import StoreError
from taskguard.protocol.entry_names import run_of
from taskguard.protocol.store import Lease

if TYPE_CHECKING:
    from taskguard.celery.delivery import CeleryDelivery


def ended(delivery: CeleryDelivery, error: BaseException | None, value: Any = None) -> Ended:
    """How the body ended, given the messages that it wants sent."""
    same = [call for call in delivery.calls if _is_this_job(delivery, call)]
    for call in delivery.calls:
        if call not in same:
            # Other work replaces the job under this id. Publish it before this job ends: if the worker dies in between,
            # the body runs again and publishes the same id again, which is recognised.
            _send(delivery, delivery.app_guard.app.send_task, call)
    delivery.calls = same
    if same:
        delay = same[0].delay(delivery.app_guard.zone)
        seconds = same[0].waits_for(delivery.app_guard.settings.queued_for + delay, delivery.app_guard.zone)
        return Ended("retry", value=value, error=error, delay=delay, seconds=seconds)
    if delivery.request.is_eager or delivery.replaced_by_itself:
        return Ended("released", value=value, error=error)
    return Ended("ignored", value=value, error=error)


def go_on(delivery: CeleryDelivery, effect: GoOn) -> Any:
    work = delivery.works.get(len(delivery.machine.layers) - 1)
    for call in delivery.calls:
        _send(delivery, delivery.app_guard.send, call.with_(effect.envelope), None if work is None else work.lease)
    if effect.ended.error is not None:
        raise effect.ended.error
    return effect.ended.value


def _is_this_job(delivery: CeleryDelivery, call: Call) -> bool:
    """Whether the call is a retry, or a replacement with the same key."""
    key = delivery.envelope.key
    if call.envelope.key:
        return call.envelope.key == key
    if call.name == delivery.task.name and call.options.get("retries", 0) > delivery.request.retries:
        return True
    guarded = getattr(call.options.get("task_type"), "taskguard", None)
    if guarded is None or delivery.guarded is None:
        return False
    with suppress(TypeError):
        its_key = guarded.keys(call.args or (), call.kwargs or {})
        return bool(run_of(guarded.policy, its_key, delivery.id) == run_of(delivery.guarded.policy, key, delivery.id))
    return False


def _send(delivery: CeleryDelivery, send: Callable[..., Any], call: Call, requeued: Lease | None = None) -> None:
    try:
        send(call.name, call.args, call.kwargs, **call.options)
    except OperationalError as error:
        if requeued is not None and delivery.task.acks_late:
            _expect_the_old_message(delivery, requeued)
        elif requeued is not None:
            delivery.fail_all(error)
        delivery.message.give_back(error)
    except Exception as error:  # for example it cannot be serialized, and never will be: the job ends here
        if requeued is not None:
            delivery.fail_all(error)
        raise


def _expect_the_old_message(delivery: CeleryDelivery, lease: Lease) -> None:
    """The named copy was not sent: let the job start by whichever message comes."""
    settings = delivery.app_guard.settings
    with suppress(StoreError):
        delivery.guard.store.requeue(lease, settings.queued_for, copy_for=settings.republish_after)


def delay_of(way_out: BaseException) -> float:
    """Seconds until a worker may take the message of a retry: until then it is not lost."""
    when = getattr(way_out, "when", None)
    if isinstance(when, datetime):
        left: float = (maybe_make_aware(when) - datetime.now(timezone.utc)).total_seconds()
        return max(0.0, left)
    return float(when) if isinstance(when, (int, float)) else 0.0
