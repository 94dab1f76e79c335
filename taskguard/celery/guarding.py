"""The guard of one app, and of one task."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from datetime import tzinfo
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from celery import Celery
from celery.signals import worker_process_shutdown

from taskguard.celery.events import event_sender
from taskguard.celery.message_repr import keep_out_of_properties
from taskguard.celery.outcomes import AppOutcomes
from taskguard.celery.settings import Settings, check_spelling, checked_names, store_of, visibility_timeout
from taskguard.engine.envelope import Envelope
from taskguard.engine.guarded import GuardedFunction
from taskguard.engine.layers import Layer, Terms, job_queue_entry, key_layer, slot_layer
from taskguard.engine.store_identity import Identity
from taskguard.errors import ConfigurationError
from taskguard.guard import Guard
from taskguard.history import flush_all
from taskguard.keys.maker import KeyMaker
from taskguard.keys.signatures import signature_of
from taskguard.protocol.names import LONGEST
from taskguard.protocol.policy import DEFAULT_KEEP, Policy
from taskguard.protocol.store import Store
from taskguard.runtime.breaker import Breaker, breaker_of
from taskguard.runtime.confirmations import Confirmations
from taskguard.schedule.note import Note
from taskguard.stores.unusable import open_for_queue

_logger = logging.getLogger("taskguard")

ATTRIBUTE = "_taskguard"
LONGEST_DELAY = 30.0
_CELERYS = "celery."
"""The prefix of the names of Celery's own tasks."""
CALL_TIMEOUT = 1.0
"""Seconds that a call waits for one reply of the store."""


class AppGuard:
    """One per app, as `app._taskguard`. Everything is created on first use."""

    def __init__(self, app: Celery, send: Callable[..., Any]) -> None:
        self.app = app
        self.send = send
        """The app's own `send_task`, which claims nothing."""
        self.away_until = 0.0
        """Until then, by the monotonic clock, the worker's parent does not ask the store."""
        self._given: dict[str, Any] = {}

    def give(self, settings: Mapping[str, Any]) -> None:
        settings = checked_names(settings)
        if settings and "settings" in vars(self):
            raise ConfigurationError(
                "this app already uses taskguard; call install(app, …) before its first task is called"
            )
        self._given |= settings

    @cached_property
    def settings(self) -> Settings:
        # Read on first use: an app may be configured after its tasks were decorated.
        check_spelling(self.app)
        return Settings.of(self.app, self._given)

    @cached_property
    def outcomes(self) -> AppOutcomes:
        return AppOutcomes(self.app)

    @cached_property
    def guard(self) -> Guard:
        """For workers, which can wait."""
        return self._open(self._store)

    @cached_property
    def calls(self) -> Guard:
        """For calls, which wait for an unavailable store for a second at most."""
        url = self._store
        if not isinstance(url, str) or url.startswith("memory:") or "timeout=" in url:
            return self.guard
        return self._open(f"{url}{'&' if '?' in url else '?'}timeout={CALL_TIMEOUT:g}")

    @cached_property
    def breaker(self) -> Breaker:
        """For calls: a store that is away is not waited for by each of them."""
        return breaker_of(self._store) if isinstance(self._store, str) else Breaker()

    @cached_property
    def _store(self) -> Store | str:
        return self.settings.store or store_of(self.app)

    def _open(self, store: Store | str) -> Guard:
        guard = Guard(
            open_for_queue(store, namespace=self.settings.namespace) if isinstance(store, str) else store,
            outcomes=self.outcomes,
            history=bool(self.settings.history),
            on_evicting_store=self.settings.on_evicting_store,
        )
        if guard.recorder is not None:
            # A child of the pool ends without running atexit handlers.
            worker_process_shutdown.connect(flush_all, dispatch_uid="taskguard.history")
        guard.listeners.add(event_sender(self.app))
        for listener in self.settings.listeners:
            guard.listeners.add(listener)
        return guard

    def close(self) -> None:
        """Close what this object opened; the next call opens it again. A store object given to the app stays open."""
        made = vars(self)
        if "confirmations" in made:
            self.confirmations.finish()
        for guard in {id(made[name]): made[name] for name in ("guard", "calls") if name in made}.values():
            if isinstance(self._store, str):
                guard.close()
            elif guard.recorder is not None:
                guard.recorder.flush()

    @cached_property
    def identity(self) -> Identity:
        return Identity()

    @cached_property
    def confirmations(self) -> Confirmations:
        return Confirmations(self.calls.store)

    @cached_property
    def keep_for(self) -> float:
        """The default `keep_for` of a task: longer than any message can be redelivered."""
        return min(LONGEST, max(DEFAULT_KEEP, 2 * visibility_timeout(self.app)))

    def keep_of(self, slot: Note) -> float:
        """The same for a slot: schedulers may have republished it long before its message is redelivered."""
        return max(slot.keep_for, self.keep_for)

    @cached_property
    def longest_delay(self) -> float:
        """The longest delay of a deferred message: a delay past the visibility timeout would multiply it."""
        return min(LONGEST_DELAY, visibility_timeout(self.app) / 3)

    @cached_property
    def results_are_private(self) -> bool:
        """Whether a result reaches only the process that called, so that a duplicate cannot use the holder's handle."""
        return str(self.app.conf.result_backend or "").startswith("rpc")

    @cached_property
    def zone(self) -> tzinfo:
        zone: tzinfo = self.app.timezone
        return zone

    @cached_property
    def terms(self) -> Terms:
        settings = self.settings
        return Terms(
            queued_for=settings.queued_for,
            republish_after=settings.republish_after,
            on_store_error=settings.on_store_error,
            names_copies=True,
            trust_copy_for=2 * self.longest_delay + 10,
        )

    @cached_property
    def patience_at_the_end(self) -> float:
        return self.settings.patience_at_the_end

    def claims(
        self, task: Any, guarded: TaskGuard | None, envelope: Envelope, task_id: str, slot: Note | None, retries: int
    ) -> tuple[tuple[Layer, ...], str]:
        """The layers that a job claims, from the outside in; and the entry that holds its place in the queue."""
        if slot is None:
            assert guarded is not None
            return (key_layer(guarded.policy, envelope, task_id),), job_queue_entry(guarded.policy, envelope)
        # Schedulers must not republish a run whose end may go unrecorded: it would run again. And they do not have the
        # message of a retry.
        kept = bool(task.acks_late) and self.patience_at_the_end > 0 and not retries
        outer = slot_layer(slot, self._slot_policy(guarded, slot), task_id, kept=kept)
        return (outer,) if guarded is None else (outer, key_layer(guarded.policy, envelope, task_id, slot)), ""

    def _slot_policy(self, guarded: TaskGuard | None, slot: Note) -> Policy:
        policy = guarded.policy if guarded is not None else Policy()
        # A run that may be cancelled must notice a lost slot; otherwise the function's own key decides.
        is_outer = guarded is not None and slot.overlap != "cancel_other"
        return Policy.of(
            lease=policy.lease,
            max_starts=policy.max_starts,
            keep_for=max(self.keep_of(slot), policy.lease),
            on_lost="continue" if is_outer else policy.on_lost,
        )

    def options_for(self, name: str) -> Mapping[str, Any] | None:
        """What `taskguard_tasks` has for the task, if anything; the first matching pattern counts."""
        # Not cached: tasks are made while the app is being configured, and later settings count too.
        for pattern, options in (Settings.of(self.app, self._given).tasks or {}).items():
            if self.fits(pattern, name):
                return options
        return None

    @staticmethod
    def fits(pattern: str, name: str) -> bool:
        """Whether a pattern of `taskguard_tasks` matches the task of that name."""
        # A canvas runs on Celery's own tasks (and some have arguments that cannot be a key): "*" excludes them.
        return fnmatchcase(name, pattern) and (pattern.startswith(_CELERYS) or not name.startswith(_CELERYS))


class TaskGuard(GuardedFunction):
    """The policy and keys of a guarded task: `task.taskguard`."""

    def __init__(self, task: Any, policy: Policy, function: Callable[..., Any], *, bound: bool) -> None:
        self._task = task
        self._policy = policy
        self.name: str = task.name
        self.keys: KeyMaker = policy.keys_for(signature_of(function, bound=bound), task.name)
        keep_out_of_properties(task.name)

    @cached_property
    def app_guard(self) -> AppGuard:
        return app_guard_of(self._task.app)

    @property
    def own_guard(self) -> Guard:
        return self.app_guard.guard

    @cached_property
    def shows_arguments(self) -> bool:  # type: ignore[override]
        return self.app_guard.settings.history == "arguments"

    @cached_property
    def has_readable_keys(self) -> bool:
        return self.policy.readable_keys and self.app_guard.settings.readable_keys

    @cached_property
    def policy(self) -> Policy:  # type: ignore[override]
        if self._policy.keep_for is None:
            return replace(self._policy, keep_for=max(self.app_guard.keep_for, self._policy.lease))
        if self._policy.keep_for < visibility_timeout(self.app_guard.app):
            _logger.warning(
                "%s: keep_for=%g is shorter than the broker's visibility timeout of %g s; a message that is "
                "redelivered after keep_for runs again",
                self._task.name,
                self._policy.keep_for,
                visibility_timeout(self.app_guard.app),
            )
        return self._policy


def app_guard_of(app: Celery) -> AppGuard:
    found = getattr(app, ATTRIBUTE, None)
    if not isinstance(found, AppGuard):
        raise ConfigurationError(
            f"taskguard is not installed in {app!r}; call taskguard.celery.install(app) where the app is made"
        )
    return found


def is_installed(app: Celery) -> bool:
    return isinstance(getattr(app, ATTRIBUTE, None), AppGuard)


POLICY_OPTIONS = frozenset(field.name for field in fields(Policy) if field.init)


def checked(options: Mapping[str, Any]) -> Policy:
    """The policy with these options; raises `ConfigurationError` for options that cannot work."""
    return Policy.of(**options)
