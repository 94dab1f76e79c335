"""The queue for projects with django-rq: `RQ = {"QUEUE_CLASS": "taskguard.rq.django.GuardedDjangoQueue"}`."""

from __future__ import annotations

from django_rq.queues import DjangoRQ

from taskguard.rq.queue import GuardedQueue

__all__ = ["GuardedDjangoQueue"]


class GuardedDjangoQueue(GuardedQueue, DjangoRQ):  # type: ignore[misc]
    """Drop-in for django-rq's queue. A key is claimed when its job is enqueued: as the commit mode says, so by default
    when the transaction commits."""
