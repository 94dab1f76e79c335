"""The settings of a fleet's application, for each broker and result backend."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

ENVIRONMENT = "TASKGUARD_TEST_SETTINGS"
"""The environment variable that holds a worker's settings, as JSON."""

QUICK_REDELIVERY = {
    "broker_transport_options": {"visibility_timeout": 2, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}
}
"""Redis: what was delivered to a worker that is gone comes back after 2 s or a little more."""

BITE = "bite_taskguard"
"""A setting of these tests: the guard only counts, and enforces nothing. What is about safety must fail then."""

AT_LEAST_ONCE = {"task_acks_late": True, "task_reject_on_worker_lost": True}

Broker = Literal["redis", "rabbitmq", "rabbitmq-quorum"]
Backend = Literal["redis", "sql", "rpc", None]


def settings(
    *, broker: Broker, broker_url: str, backend: Backend, backend_url: str, queue: str, more: Mapping[str, Any]
) -> dict[str, Any]:
    """All of an application's settings; *more* has the last word."""
    return {
        "broker_url": broker_url,
        "broker_connection_retry_on_startup": True,
        "task_default_queue": queue,
        "control_exchange": queue,
        "worker_prefetch_multiplier": 1,
        "worker_lost_wait": 1.0,
        **_BROKERS[broker],
        **_backend(backend, backend_url),
        **more,
    }


def sql_url(directory: Path) -> str:
    return f"db+sqlite:///{directory / 'results.db'}?timeout=20"


_BROKERS: dict[Broker, dict[str, Any]] = {
    "redis": {"broker_transport_options": {"visibility_timeout": 3600}},
    "rabbitmq": {},
    "rabbitmq-quorum": {"task_default_queue_type": "quorum", "task_create_missing_queue_type": "quorum"},
}


def _backend(backend: Backend, url: str) -> dict[str, Any]:
    return {"result_backend": url} if backend else {"task_ignore_result": True}
