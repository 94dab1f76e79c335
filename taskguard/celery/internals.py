"""What we use of Celery, kombu and billiard that they do not document. All of it is here: imports, and lists.

Methods of a task that Celery documents, and that a guarded task has in front of its own, are listed too: one that
Celery no longer calls would leave a task unguarded.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from taskguard.errors import ConfigurationError
from taskguard.runtime.internals import Used, problem_with, require

TESTED = {
    "celery": "5.4 to 5.7",
    "kombu": "5.3 to 5.7",
    "billiard": "4.3",
    "django_celery_beat": "2.9",
    "redbeat": "2.4",
}

STATE = (
    ("celery._state", "get_current_app connect_on_app_finalize _get_active_apps", "tasks of every app"),
    ("celery._state", "get_current_task get_current_worker_task", "which job this code is part of"),
)
APPS = (
    *STATE,
    ("celery.app.base:Celery", "_task_from_fun", "wrapped: guards tasks by their names; its options"),
    ("celery.app.base:Celery", "_tasks", "the tasks that there are before the app is finalized"),
    ("celery.app.base:Celery", "_finalize_mutex", "makes a task of an app that is ready"),
    ("celery.app.base:Celery", "_warn_duplicate_task_name", "wrapped: warns of the user's line", ">=5.7"),
    ("celery.local:Proxy", "_get_current_object", "the app or the task that a proxy stands for"),
    ("celery.local:PromiseProxy", "__then__", "guards a task that is not made yet"),
    ("celery.app.task", "extract_exec_options", "which options a task has for its messages"),
    ("celery.app.task:Task", "_backend", "whether a task has a result backend of its own"),
    ("celery.app.task:Task", "Request", "overridden: our request class"),
    ("celery.app.task:Task", "abstract track_started acks_late reject_on_worker_lost", "overridden: defaults"),
    ("celery.app.task:Task", "apply apply_async replace on_bound", "overridden: calls, and what they are answered"),
    ("celery.app.task:Task", "on_success on_failure after_return", "overridden: what was answered"),
    ("celery.app.amqp:AMQP", "as_task_v2 create_task_message router", "texts of arguments, as Celery makes them"),
    ("celery.app.routes:Router", "routes lookup_route", "whether a route changes these texts"),
    ("celery.result:AsyncResult", "_get_task_meta get", "overridden: the handle of work that was done before"),
    ("celery.result:AsyncResult", "_cache _set_cache __reduce_args__", "the same"),
    ("celery.backends.base:BaseKeyValueStoreBackend", "_get_task_meta_for", "wrapped: one round trip less"),
)
WORKERS = (
    ("celery.worker.request:Request", "_request_dict _content_type", "what the message says"),
    ("celery.worker.request:Request", "_args _kwargs", "the arguments, to find the key"),
    ("celery.worker.request:Request", "_eventer", "whether the worker sends events"),
    ("celery.worker.request:Request", "_already_cancelled worker_pid acknowledged", "what became of the child"),
    ("celery.worker.request:Request", "_announce_revoked _announce_cancelled", "overridden: settles for the child"),
    ("celery.worker.request:Request", "on_failure on_timeout cancel acknowledge reject", "overridden: the same"),
    ("celery.worker.request:Request", "_retry_worker_lost", "overridden: the same", ">=5.7"),
    ("celery.worker.state", "should_terminate", "a cold shutdown"),
    ("billiard.einfo", "ExceptionWithTraceback", "what a child raised"),
)
RESCUE = (
    ("celery.bootsteps:StartStopStep", "include_if start stop name requires", "overridden: a step of the worker"),
    ("kombu.transport.virtual.base:QoS", "_delivered _dirty", "the messages that this worker has in hand"),
    ("kombu.transport.redis:Channel", "_get_message_priority _lookup _q_for_pri", "where a message came from"),
    ("kombu.transport.redis:Channel", "unacked_key unacked_index_key async_pool global_keyprefix", "its messages"),
)
"""For workers on Redis: the messages of dead ones come back."""
HEALTH = (("celery.worker.state", "active_requests", "how many jobs a worker has begun"),)
"""For workers that write a heartbeat file."""
CHORDS = (
    (
        "celery.backends.redis:RedisBackend",
        "_chord_claim_extend_script",
        "whether a dead worker has reserved the callback of a chord",
        ">=5.7",
    ),
)
BEATS = (
    ("celery.beat:Scheduler", "tick", "overridden: publishes each slot once"),
    ("celery.beat:Scheduler", "apply_entry", "logs a slot that is sent; monitors wrap it"),
    ("celery.beat:Scheduler", "reserve apply_async producer schedule max_interval", "the scheduler's own part"),
)
DJANGO = (
    (
        "django_celery_beat.schedulers:DatabaseScheduler",
        "enabled_models_qs Model",
        "overridden: also entries that are not due for hours",
    ),
)
REDBEAT = (
    ("redbeat.schedulers", "get_redis", "its entries"),
    ("redbeat.schedulers:RedBeatScheduler", "Entry lock_key", "its entries, and no leader among beats"),
    ("redbeat.schedulers:RedBeatSchedulerEntry", "from_key", "its entries"),
    ("redbeat.schedulers:RedBeatConfig", "schedule_key", "its entries"),
)

ALL = (*APPS, *WORKERS, *RESCUE, *HEALTH, *CHORDS, *BEATS, *DJANGO, *REDBEAT)


def require_names(used: tuple[Used, ...]) -> None:
    require(used, TESTED)


def _state_of_celery() -> Any:
    try:
        return import_module("celery._state")
    except ModuleNotFoundError as error:
        if error.name != "celery._state":
            raise  # there is no Celery at all
        raise ConfigurationError(problem_with(STATE[0], ["celery._state"], TESTED)) from error


state: Any = _state_of_celery()
require_names(STATE)
get_active_apps: Any = state._get_active_apps
connect_on_app_finalize: Any = state.connect_on_app_finalize
get_current_app: Any = state.get_current_app
get_current_task: Any = state.get_current_task
get_current_worker_task: Any = state.get_current_worker_task
