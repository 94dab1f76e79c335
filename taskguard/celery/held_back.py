"""Messages under a running job's own id: a retry, or a replacement. They leave when the body has unwound.

A retry never starts beside the body that asked for it: its message leaves once the lease has ended.
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


def ended(it: CeleryDelivery, error: BaseException | None, value: Any = None) -> Ended:
    """How the body ended that wants these messages sent, or none."""
    same = [call for call in it.calls if _is_this_job(it, call)]
    for call in it.calls:
        if call not in same:
            # Replaced by other work under this id. Published before this job ends: if the worker dies in between, the
            # body runs again and publishes the same id again, which is recognised.
            _send(it, it.guarding.app.send_task, call)
    it.calls = same
    if same:
        delay = same[0].delay(it.guarding.zone)
        seconds = same[0].waits_for(it.guarding.settings.queued_for + delay, it.guarding.zone)
        return Ended("retry", value=value, error=error, delay=delay, seconds=seconds)
    if it.request.is_eager or it.replaced_by_itself:
        return Ended("released", value=value, error=error)
    return Ended("ignored", value=value, error=error)


def go_on(it: CeleryDelivery, effect: GoOn) -> Any:
    work = it.works.get(len(it.machine.layers) - 1)
    for call in it.calls:
        _send(it, it.guarding.send, call.with_(effect.envelope), None if work is None else work.lease)
    if effect.ended.error is not None:
        raise effect.ended.error
    return effect.ended.value


def _is_this_job(it: CeleryDelivery, call: Call) -> bool:
    """Whether it is a retry, or a replacement by the same key."""
    key = it.envelope.key
    if call.envelope.key:
        return call.envelope.key == key
    if call.name == it.task.name and call.options.get("retries", 0) > it.request.retries:
        return True
    guarded = getattr(call.options.get("task_type"), "taskguard", None)
    if guarded is None or it.guarded is None:
        return False
    with suppress(TypeError):
        its_key = guarded.keys(call.args or (), call.kwargs or {})
        return bool(run_of(guarded.policy, its_key, it.id) == run_of(it.guarded.policy, key, it.id))
    return False


def _send(it: CeleryDelivery, send: Callable[..., Any], call: Call, requeued: Lease | None = None) -> None:
    try:
        send(call.name, call.args, call.kwargs, **call.options)
    except OperationalError as error:
        if requeued is not None and it.task.acks_late:
            _expect_the_old_message(it, requeued)
        elif requeued is not None:
            it.fail_all(error)
        it.message.give_back(error)
    except Exception as error:  # it cannot be written, say, and never will be: the job ends here
        if requeued is not None:
            it.fail_all(error)
        raise


def _expect_the_old_message(it: CeleryDelivery, lease: Lease) -> None:
    """The one that was named did not leave: the job starts by whichever comes."""
    settings = it.guarding.settings
    with suppress(StoreError):
        it.guard.store.requeue(lease, settings.queued_for, copy_for=settings.republish_after)


def delay_of(way_out: BaseException) -> float:
    """Seconds until the message of a retry may be taken: before that it is not lost."""
    when = getattr(way_out, "when", None)
    if isinstance(when, datetime):
        left: float = (maybe_make_aware(when) - datetime.now(timezone.utc)).total_seconds()
        return max(0.0, left)
    return float(when) if isinstance(when, (int, float)) else 0.0
