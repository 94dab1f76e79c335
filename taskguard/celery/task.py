"""`@singleton_task`: a Celery task whose work runs once."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, overload

from celery import Celery
from celery.app.task import Task
from celery.exceptions import NotRegistered
from celery.local import PromiseProxy, Proxy
from celery.utils.imports import symbol_by_name

from taskguard.celery.app import install
from taskguard.celery.delivery import ENDED, deliver, in_hand
from taskguard.celery.fenced import with_fence
from taskguard.celery.first_success import expect_no_more
from taskguard.celery.guarding import TaskGuard, checked, is_installed
from taskguard.celery.headers import CALL, IDEMPOTENCY_KEY, envelope_in
from taskguard.celery.internals import connect_on_app_finalize, get_active_apps, get_current_app, get_current_task
from taskguard.celery.map_items import map_in_hand, run_item
from taskguard.celery.replay import claimant_of_call
from taskguard.celery.result import handle
from taskguard.celery.stacking import SharedProxy, is_guarded, refuse_guarded_body, remember
from taskguard.celery.task_options import (
    ACKNOWLEDGEMENT,
    OF_THE_DECORATOR,
    check_for_class,
    check_for_task,
    default_base,
    split,
)
from taskguard.engine.call_info import CallInfo
from taskguard.errors import ConfigurationError, StoreError
from taskguard.keys.signatures import fence_parameter, runs_later, signature_of
from taskguard.protocol.policy import Policy
from taskguard.protocol.store import Ending
from taskguard.runtime.switch import is_off

_HOOKS = ("on_success", "on_failure", "after_return")

_logger = logging.getLogger("taskguard")


class GuardedTask(Task):  # type: ignore[misc]
    """In front of the base class of a guarded task. `__call__` claims the key around the body."""

    abstract = True
    acks_late = True
    reject_on_worker_lost = True
    track_started = False
    """Celery would store STARTED before the claim; the guard stores it after."""
    taskguard_track_started: bool | None = None
    taskguard_request: Any = None
    """The task's own request class; the guard's is put in front of it."""
    taskguard_policy: Policy

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        if not is_installed(app):
            install(app)
        super().on_bound(app)

    @functools.cached_property
    def taskguard(self) -> TaskGuard:
        function, bound = _body_of(type(self))
        return TaskGuard(self, self.taskguard_policy, function, bound=bound)

    @functools.cached_property
    def Request(self) -> type:  # noqa: N802 - Celery's name
        from taskguard.celery.request import in_front_of  # only workers need this code

        # Celery reads this when the worker starts: an app without a store raises now, and the parent's guard is open
        # before it is needed.
        if not is_off():
            self.taskguard.app_guard.guard  # noqa: B018
        return in_front_of(symbol_by_name(self.taskguard_request or super().Request))

    @functools.cached_property
    def taskguard_tracks_start(self) -> bool:
        chosen = self.taskguard_track_started
        return bool(self.app.conf.task_track_started if chosen is None else chosen)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        request, around = self.request, in_hand.get()
        calls_itself = around is not None and around.request is request
        if not request.called_directly and request.id is not None and not calls_itself:
            if is_off():
                return self._call_unguarded(self._call_body, request.id, args, kwargs)
            return deliver(self, self._call_body, args, kwargs)
        mapped = map_in_hand()
        if mapped is not None:
            if is_off():
                return self._call_unguarded(super().__call__, mapped.id, args, kwargs)
            return run_item(self, mapped, args, kwargs)
        refuse_guarded_body(get_current_task())
        return super().__call__(*args, **kwargs)

    def _call_unguarded(self, body: Callable[..., Any], owner: str, args: Any, kwargs: Any) -> Any:
        from taskguard.engine.unguarded import UnguardedFence

        key = self.name
        with suppress(TypeError):  # the body refuses arguments that do not fit
            key = self.taskguard.keys(args, kwargs)
        with UnguardedFence(key, owner, envelope_in(self.request.headers, owner).idempotency_key):
            return body(*args, **kwargs)

    def _call_body(self, *args: Any, **kwargs: Any) -> Any:
        # A base class may have its own __call__. Celery's would hide the request from an eager body.
        inherited = super().__call__
        body = self.run if inherited.__func__ is Task.__call__ else inherited
        return body(*args, **kwargs)

    def apply_async(self, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        key = options.pop("idempotency_key", None)
        if key is not None:
            options["headers"] = {**(options.get("headers") or {}), IDEMPOTENCY_KEY: key}
        return super().apply_async(args, kwargs, *rest, **options)

    def replace(self, sig: Any) -> Any:
        delivery = in_hand.get()
        if delivery is not None and delivery.id == self.request.id:
            delivery.replaced_by_itself = self._shares_keys_with(_ends_as(sig))
        return super().replace(sig)

    def _shares_keys_with(self, name: str) -> bool:
        guarded = getattr(self.app.tasks.get(name), "taskguard", None)
        return guarded is not None and guarded.keys.space == self.taskguard.keys.space

    def apply(self, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        result = super().apply(args, kwargs, *rest, **options)
        given = envelope_in(options.get("headers"), result.id).idempotency_key
        with suppress(TypeError):  # the result has the error if arguments do not fit
            keys = self.taskguard.keys
            key = keys.explicit(given) if given else keys(args or (), kwargs or {})
            handle(result, self._about(result.id, key))
        return result

    def _about(self, task_id: str, key: str) -> CallInfo:
        """The `CallInfo` of an eager call: whether it got the outcome of another one."""
        with suppress(StoreError):
            entry = None if is_off() else self.taskguard.app_guard.guard.store.get(key)
            if entry is not None and entry.state == "done" and entry.owner != task_id:
                return CallInfo(key, entry.owner, True, "done", entry.since)
        return CallInfo(key, task_id, state="done")

    # Celery calls these when it has stored the result and sent the callbacks. A task's own hooks may take long.

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        self._record_answered(task_id)
        super().on_success(retval, task_id, args, kwargs)

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        self._record_answered(task_id)
        super().on_failure(exc, task_id, args, kwargs, einfo)

    def after_return(self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        expect_no_more(task_id)
        self._record_answered(task_id)
        super().after_return(status, retval, task_id, args, kwargs, einfo)

    def _record_answered(self, task_id: str) -> None:
        """Record that callbacks were sent, so that a leftover copy does not send them again."""
        ended = getattr(self.request, ENDED, None)
        if ended is None:
            return
        setattr(self.request, ENDED, None)
        claim, how = ended
        headers = self.request.headers
        if isinstance(headers, Mapping) and headers.get(CALL):
            # People pass on the headers of other jobs; those are ignored.
            found = envelope_in(headers, task_id)
            claim = claimant_of_call(found, claim.attempt) if found.call else claim
        ending = Ending(how=how, keep_for=self.taskguard.policy.keep, answered=True)
        try:
            self.taskguard.app_guard.guard.store.release(claim, ending, anyway=True)
        except StoreError as error:
            _logger.warning("%s[%s]: could not record that callbacks were sent: %s", self.name, task_id, error)


# -- the decorator -----------------------------------------------------------------------------------------------


@overload
def singleton_task(app: Callable[..., Any], /) -> Any: ...
@overload
def singleton_task(app: Celery | None = None, /, **options: Any) -> Callable[[Any], Any]: ...


def singleton_task(app: Any = None, /, **options: Any) -> Any:
    """Make a guarded task of a function or of a task class.

    `@singleton_task(app, key=…)` registers it with *app*; without an app it is a shared task. Over `@app.task` it
    guards that task. Other options are Celery's own.
    """
    if app is not None and not isinstance(app, Celery) and not _is_proxy_of_app(app):
        return singleton_task()(app)

    def decorate(what: Any) -> Any:
        if is_guarded(what) and not inspect.isclass(what):
            raise ConfigurationError("the task is guarded already; write all options in one @singleton_task(…)")
        policy, celery_options = split(options, _base_of(what, options, app))
        if isinstance(what, PromiseProxy):
            check_for_task(celery_options)
            what.__then__(lambda: adopt(what._get_current_object(), policy, celery_options))
            return remember(what)
        if isinstance(what, Proxy):
            raise ConfigurationError(
                "@singleton_task over @shared_task does not work; write @singleton_task(…) in place of @shared_task(…)"
            )
        if isinstance(what, Task):
            check_for_task(celery_options)
            adopt(what, policy, celery_options)
            return what
        if inspect.isclass(what):
            return _task_of_class(app, what, policy, celery_options)
        return _task_of_function(app, what, policy, celery_options)

    return decorate


def _base_of(what: Any, options: Mapping[str, Any], app: Celery | None) -> type:
    """The class whose attributes the options may set."""
    if inspect.isclass(what):
        return what
    base: type = options.get("base") or default_base(app)
    return base


def _task_of_function(app: Celery | None, function: Callable[..., Any], policy: Policy, options: dict[str, Any]) -> Any:
    if not callable(function):
        raise ConfigurationError(f"singleton_task takes a function or a task class, not {function!r}")
    if runs_later(function):
        raise ConfigurationError(
            f"{function!r} is a coroutine or a generator: a call only starts it, so its end cannot be guarded; "
            "decorate a plain function"
        )
    name, bound = options.get("name") or f"{function.__module__}.{function.__name__}", bool(options.get("bind"))
    # A wrong key raises here, not at the first call.
    keys = policy.keys_for(signature_of(function, bound=bound), name)
    visible = with_fence(function, keys, bound=bound)
    hooks = _hooks_in(options)

    def options_for(base: type) -> dict[str, Any]:
        return {**options, "base": guarded_base(_with_hooks(base, hooks)), "taskguard_policy": policy}

    def make_in(other: Celery) -> Any:
        made = options_for(options.get("base") or other.Task)
        return other._task_from_fun(visible, **{name: made[name] for name in made if name not in OF_THE_DECORATOR})

    if app is not None:
        install(app)
        if options.get("shared", True):
            # Celery would keep the options of a shared task for ever, and among them a base class that has the app.
            connect_on_app_finalize(make_in)
        return remember(app.task(**{**options_for(options.get("base") or app.Task), "shared": False})(visible))
    return _share(
        make_in, lambda other: options.get("name") or other.gen_task_name(function.__name__, function.__module__)
    )


def _task_of_class(app: Celery | None, base: Any, policy: Policy, options: dict[str, Any]) -> Any:
    if not issubclass(base, Task):
        raise ConfigurationError(f"{base!r} is not a task class; let it inherit from celery.Task")
    check_for_class(options)
    function = _body_of(base)[0]
    keys = policy.keys_for(signature_of(function, bound=True), options.get("name") or base.name or base.__qualname__)
    if fence_parameter(function) is not None:
        options = {**options, "run": with_fence(function, keys, bound=True)}
    hooks = _hooks_in(options)
    body = {**options, "abstract": False, "taskguard_policy": policy, "__module__": base.__module__}
    guarded: Any = type(base.__name__, (guarded_base(_with_hooks(base, hooks)),), body)
    if app is not None:
        install(app)
        return app.register_task(guarded())
    return _share(
        # Each app needs its own class: Celery keeps the app of a task on its class.
        lambda other: other.register_task(type(guarded.__name__, (guarded,), {"__module__": base.__module__})()),
        lambda other: guarded.name or other.gen_task_name(guarded.__name__, guarded.__module__),
    )


def _share(make: Callable[[Celery], Any], name: Callable[[Celery], str]) -> Any:
    """Make the task in every app, finalized now or later."""

    def make_in(app: Celery) -> Any:
        install(app)
        return make(app)

    connect_on_app_finalize(make_in)
    for app in get_active_apps():
        if app.finalized:
            with app._finalize_mutex:
                make_in(app)

    def of_current_app() -> Any:
        app = get_current_app()
        try:
            return app.tasks[name(app)]
        except NotRegistered:  # the app makes its shared tasks in any order, and has not finished
            raise NotRegistered(
                f"{name(app)} is not made yet, but is used while the app makes its tasks; if @app.task or @shared_task "
                "over @singleton_task does that, remove it"
            ) from None

    return SharedProxy(of_current_app)


def guard_by_options(task: Any, options: Mapping[str, Any]) -> None:
    """Guard a task with options from the app's setting `taskguard_tasks`."""
    attributes = {name: value for name, value in options.items() if name in ACKNOWLEDGEMENT}
    adopt(task, checked({name: value for name, value in options.items() if name not in attributes}), attributes)


def adopt(task: Any, policy: Policy, attributes: Mapping[str, Any] | None = None) -> None:
    """Guard a task that Celery made without a guard."""
    if isinstance(task, GuardedTask):
        return
    base = type(task)
    function, bound = _body_of(base)
    if fence_parameter(function) is not None:
        raise ConfigurationError(
            f"{task.name} takes a fence, but @app.task made it, so its callers would have to pass the fence; write "
            "@singleton_task(app, …) in place of @app.task, or call taskguard.current_fence() in the body"
        )
    policy.keys_for(signature_of(function, bound=bound), task.name)
    body = {"taskguard_policy": policy, "taskguard_track_started": bool(task.track_started), **(attributes or {})}
    task.__class__ = type(base.__name__, (GuardedTask, base), {**body, "__module__": base.__module__})
    if not is_installed(task.app):
        install(task.app)


# -- classes and options -----------------------------------------------------------------------------------------


def guarded_base(base: Any) -> Any:
    """*base* with the guard in front of it. Keeps its `acks_late` and `reject_on_worker_lost`."""
    # A new class for each task: a cache would keep *base*, which may reference its app, for ever.
    if issubclass(base, GuardedTask):
        return base
    chosen = {name: getattr(base, name) for name in ACKNOWLEDGEMENT if getattr(base, name, None) is not None}
    body = {**chosen, "taskguard_track_started": base.track_started, "abstract": True, "__module__": base.__module__}
    return type(f"Guarded{base.__name__}", (GuardedTask, base), body)


def _hooks_in(options: dict[str, Any]) -> dict[str, Any]:
    """Take a task's hooks out of its options."""
    hooks = {name: options.pop(name, None) for name in _HOOKS}
    return {name: hook for name, hook in hooks.items() if hook is not None}


def _with_hooks(base: type, hooks: Mapping[str, Any]) -> type:
    """*base* with hooks given as options: they run after the guard's own, not in their place."""
    return type(base.__name__, (base,), {**hooks, "abstract": True, "__module__": base.__module__}) if hooks else base


def _body_of(task_class: type) -> tuple[Callable[..., Any], bool]:
    """The body's function, and whether its first parameter is the task."""
    run = inspect.getattr_static(task_class, "run")
    return (run.__func__, False) if isinstance(run, staticmethod) else (run, True)


def _ends_as(sig: Any) -> str:
    """The name of the last task of a canvas, which has the canvas's id."""
    if getattr(sig, "tasks", None) and sig.task == "celery.chain":
        return _ends_as(sig.tasks[-1])
    if sig.task == "celery.chord":
        return _ends_as(sig.body)
    return str(sig.task)


def _is_proxy_of_app(app: Any) -> bool:
    return isinstance(app, Proxy) and isinstance(app._get_current_object(), Celery)
