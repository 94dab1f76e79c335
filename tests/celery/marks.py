"""What older versions of Celery and of its Redis transport cannot do."""

from __future__ import annotations

import celery
import pytest
from celery.app.amqp import AMQP
from celery.concurrency.gevent import TaskPool as GeventPool
from kombu.transport.redis import Channel

needs_quorum_queues = pytest.mark.skipif(celery.VERSION < (5, 5), reason="Celery knows quorum queues since 5.5")
needs_quick_redelivery = pytest.mark.skipif(
    not hasattr(Channel, "unacked_restore_interval"), reason="this kombu looks for lost messages every 100 s"
)
needs_reserved_callbacks = pytest.mark.skipif(
    not hasattr(AMQP, "_retry_publish"), reason="this Celery reserves no callback of a chord for one worker"
)
needs_gevent_that_terminates = pytest.mark.skipif(
    "terminate_job" not in vars(GeventPool), reason="this Celery cannot terminate a job under gevent"
)
