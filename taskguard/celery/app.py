"""What taskguard changes in an app. All of it is here:

1. `app.send_task` is wrapped: every way to publish goes through it (delay, apply_async, canvas, beat, by name).
2. `app._task_from_fun` and `app.register_task` are wrapped: they guard a task whose name matches `taskguard_tasks`.
   (`install`, or the app when it is finalized, guards the tasks made before.)
3. `app._taskguard` holds the settings and the guard, created on first use.
4. In a worker every other task of the app checks whether its message is that of a scheduled slot: see `scheduled.py`,
   and `settling.py` for the parent process.
5. `app.close` also closes what the guard has opened.
6. `app._warn_duplicate_task_name` is wrapped: Celery's warning points at the first line outside its own code, which
   would be one of ours.
7. `app.task` is wrapped: it refuses to turn a guarded task into a plain one: see `stacking.py`.
8. A receiver of `before_task_publish`, for guarded tasks only, removes two properties from their messages: see
   `message_repr.py`.
9. In a worker `app.steps["consumer"]` has two steps more: one brings back the messages of dead workers (`rescue.py`),
   one writes the file of `taskguard_health_file`, if there is to be one (`health_step.py`).

The wrappers are attributes of that app; Celery's classes do not change.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

from celery import Celery
from celery.local import Proxy
from celery.signals import worker_init

from taskguard.celery.delivery import in_hand
from taskguard.celery.guarding import ATTRIBUTE, AppGuard, is_installed
from taskguard.celery.headers import AS_IS, IDEMPOTENCY_KEY, Call, without_local
from taskguard.celery.internals import APPS, require_names
from taskguard.celery.publish import publish
from taskguard.celery.result import handle, info
from taskguard.celery.scheduled import watch_slots
from taskguard.celery.stacking import refuse_guarded, refuse_guarded_body
from taskguard.runtime.switch import is_off

require_names(APPS)

_LIBRARIES = ("celery", "taskguard")

POSITIONAL = (
    *("countdown", "eta", "task_id", "producer", "connection", "router", "result_cls", "expires", "publisher"),
    *("link", "link_error", "add_to_parent", "group_id", "group_index", "retries", "chord", "reply_to", "time_limit"),
    *("soft_time_limit", "root_id", "parent_id", "route_name", "shadow", "chain", "task_type"),
    "replaced_task_nesting",
)
"""The positional parameters of Celery's `send_task`, after the name and the arguments of the task."""


def install(app: Celery, **settings: Any) -> Celery:
    """Let *app* guard its tasks.

    Settings are those of `app.conf.taskguard_*`, without the prefix. A second call without settings does nothing.
    """
    if isinstance(app, Proxy):  # for example `celery.current_app`
        app = app._get_current_object()
    is_new = not is_installed(app)
    if is_new:
        _install(app)
    app_guard: AppGuard = getattr(app, ATTRIBUTE)
    app_guard.give(settings)
    if settings or is_new:
        _guard_all(app, app_guard)
    return app


def _install(app: Celery) -> None:
    app_guard = AppGuard(app, app.send_task)
    setattr(app, ATTRIBUTE, app_guard)

    def send_task(name: str, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        if len(rest) > len(POSITIONAL):
            return app_guard.send(name, args, kwargs, *rest, **options)  # it raises
        options.update(zip(POSITIONAL, rest, strict=False))
        key = options.pop("idempotency_key", None)
        if key is not None:
            options["headers"] = {**(options.get("headers") or {}), IDEMPOTENCY_KEY: key}
        if options.get("headers"):
            options["headers"] = without_local(options["headers"])
        as_is = options.pop(AS_IS, False)
        call = Call(app_guard.send, name, args, kwargs, options)
        if as_is:
            return call.publish()
        delivery = in_hand.get()
        if delivery is not None and delivery.id == options.get("task_id"):
            return delivery.hold_back(call)
        task = options.get("task_type") or _task_named(app, name)
        guarded = getattr(task, "taskguard", None)
        if guarded is None:
            return call.publish()
        return _publish_unguarded(call) if is_off() else publish(app_guard, guarded, call)

    close = app.close

    def close_with_guard() -> None:
        try:
            app_guard.close()
        finally:
            close()

    app.send_task, app.close = send_task, close_with_guard
    _show_whose_name_is_taken(app)
    _guard_by_name(app, app_guard)
    _refuse_plain_tasks_of_guarded_ones(app)
    watch_slots()
    worker_init.connect(_add_steps)


def _add_steps(sender: Any = None, **_: Any) -> None:
    if sender is not None and is_installed(sender.app):
        from taskguard.celery.health_step import HealthStep  # the worker's own code
        from taskguard.celery.rescue_step import RescueStep

        sender.app.steps["consumer"].update((HealthStep, RescueStep))


def _publish_unguarded(call: Call) -> Any:
    result = call.publish()
    return handle(result, info("", result.id, None))


def _task_named(app: Celery, name: str) -> Any:
    """The task, if its code is loaded here; else the worker claims."""
    tasks = app.tasks if app.finalized or app.autofinalize else app._tasks
    return tasks.get(name)


def _refuse_plain_tasks_of_guarded_ones(app: Celery) -> None:
    make = app.task

    def task(*functions: Any, **options: Any) -> Any:
        for function in functions:
            refuse_guarded(function)
        made = make(*functions, **options)
        if functions:
            return made

        def decorate(function: Any) -> Any:
            refuse_guarded(function)
            return made(function)

        return decorate

    app.task = task


def _guard_by_name(app: Celery, app_guard: AppGuard) -> None:
    make, register = app._task_from_fun, app.register_task
    app._task_from_fun = lambda *args, **options: _guard(make(*args, **options), app_guard)
    app.register_task = lambda *args, **options: _guard(register(*args, **options), app_guard)
    # A lazy task keeps the method from its declaration, and is made while the app is finalized.
    app.on_after_finalize.connect(lambda **_: _guard_all(app, app_guard), weak=False)


def _show_whose_name_is_taken(app: Celery) -> None:
    warn = getattr(app, "_warn_duplicate_task_name", None)
    if warn is None:
        return  # Celery before 5.7 does not warn

    def warn_at_the_users_line(*facts: Any) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warn(*facts)
        for warning in caught:
            warnings.warn(warning.message, stacklevel=_depth_of_user())

    app._warn_duplicate_task_name = warn_at_the_users_line


def _depth_of_user() -> int:
    """The stack level, as `warnings.warn` counts, of the first frame that is neither Celery's nor ours."""
    frame, depth = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
        frame, depth = frame.f_back, depth + 1
    return depth


def _guard(task: Any, app_guard: AppGuard) -> Any:
    from taskguard.celery.task import guard_by_options  # it imports `install`

    refuse_guarded_body(task)
    options = app_guard.options_for(task.name)
    if options is not None:
        guard_by_options(task, options)
    return task


def _guard_all(app: Celery, app_guard: AppGuard) -> None:
    for task in list(app._tasks.values()):
        _guard(task, app_guard)
