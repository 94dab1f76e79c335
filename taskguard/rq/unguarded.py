"""A job that its caller claimed, in a worker where nothing guards its function any more."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from taskguard.engine.settle import end_queued
from taskguard.errors import StoreError
from taskguard.protocol.entry_names import queue_entries_of
from taskguard.protocol.policy import Policy
from taskguard.protocol.store import Ending
from taskguard.rq.guarding import Settings, guard_on, own_namespace
from taskguard.rq.owner import owner_of
from taskguard.runtime.switch import is_off

if TYPE_CHECKING:
    from taskguard.rq.guarded_job import GuardedJob

_logger = logging.getLogger("taskguard")


def let_run(job: GuardedJob) -> None:
    """Log that, and release the queue entry, which no worker will adopt: it would last for a day."""
    if is_off():
        return
    envelope, why = job.envelope, "the function is not guarded here"
    if envelope.queue_class:
        why = f"{envelope.queue_class}, which guards it by name, cannot be imported here or does not name it any more"
    _logger.warning("%s[%s] runs unguarded: its caller claimed %s; %s", job.func_name, job.id, envelope.key, why)
    namespace = own_namespace(envelope.store)
    if namespace is None:
        return  # the entry is in a store that this worker does not know
    guard = guard_on(job.connection, job.serializer, Settings(namespace=namespace))
    policy, owner = Policy.trusted(), owner_of(job.id, job.repeats_left, envelope.run)
    with suppress(StoreError):
        for name in queue_entries_of(envelope.key):
            end_queued(guard, name, owner, Ending(keep_for=policy.keep))
