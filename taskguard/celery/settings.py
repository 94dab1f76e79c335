"""The settings of an app: `app.conf.taskguard_*`, or arguments of `install`."""

from __future__ import annotations

import difflib
import ssl
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal
from urllib.parse import urlencode

from celery import Celery

from taskguard.errors import ConfigurationError
from taskguard.events import Listener
from taskguard.history import HistoryOption, check_history_option
from taskguard.protocol.names import check_namespace
from taskguard.protocol.policy import Policy
from taskguard.protocol.store import Store
from taskguard.runtime.evictions import OnEvictingStore, check_on_evicting_store
from taskguard.schedule.entry import CatchUp, Timing
from taskguard.schedule.note import Overlap

VISIBILITY_TIMEOUT = 3600.0
"""The default of kombu's Redis transport."""
_VISIBILITY_TIMEOUTS = {"sqs": 1800.0}
"""The defaults of other transports."""
UNTIL_THE_STORE_IS_BACK = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    store: Store | str | None = None
    """Where entries live. None: the app's broker or result backend."""
    namespace: str = "taskguard"
    queued_for: float = 86400.0
    """Seconds that a queued entry waits for a worker, in addition to countdown or eta."""
    republish_after: float = 300.0
    """Seconds in the queue after which a message counts as lost, and the next duplicate call republishes it."""
    redeliver_orphans: bool = True
    """Whether workers requeue the guarded messages of a dead worker, on a Redis broker."""
    on_store_error: Literal["retry", "fail", "run_unguarded"] = "retry"
    on_evicting_store: OnEvictingStore = "warn"
    """What to do if the store's server evicts entries when its memory is full."""
    tasks: Mapping[str, Mapping[str, Any]] | None = None
    """Options by pattern of task names: guards tasks without changing their code."""
    overlap: Overlap = "skip"
    """What a scheduled run does during an earlier run of the same entry: the default for entries."""
    catch_up: CatchUp = "latest"
    """What happens to slots that came due while no scheduler ran."""
    catch_up_window: float | None = None
    """Seconds: slots missed longer ago are not caught up."""
    listeners: Sequence[Listener] = ()
    """Functions that get every decision, in addition to the log."""
    history: HistoryOption = True
    """Whether decisions are kept in the store, for `taskguard explain`, `stats` and `watch`.

    "arguments": with the values of each call.
    """

    readable_keys: bool = True
    """Whether what a key is made of is written beside it, for people; not where it is a secret."""
    health_file: str | None = None
    """Where beats and workers say that they are alive, for `taskguard health`; {role} stands for which it is."""

    def __post_init__(self) -> None:
        if self.on_store_error not in ("retry", "fail", "run_unguarded"):
            raise ConfigurationError(
                f"taskguard_on_store_error={self.on_store_error!r} is not known; write retry, fail or run_unguarded"
            )
        check_on_evicting_store("taskguard_on_evicting_store", self.on_evicting_store)
        check_history_option("taskguard_history", self.history)
        if not isinstance(self.readable_keys, bool):
            raise ConfigurationError(f"taskguard_readable_keys must be True or False, not {self.readable_keys!r}")
        if self.health_file is not None and not (isinstance(self.health_file, str) and self.health_file):
            raise ConfigurationError(f"taskguard_health_file must be the path of a file, not {self.health_file!r}")
        for name in ("queued_for", "republish_after"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 10 * 365 * 86400:
                raise ConfigurationError(f"taskguard_{name} must be a positive number of seconds, not {value!r}")
        if not isinstance(self.redeliver_orphans, bool):
            raise ConfigurationError(
                f"taskguard_redeliver_orphans must be True or False, not {self.redeliver_orphans!r}"
            )
        check_namespace(self.namespace, "taskguard_namespace")
        if not _are_functions(self.listeners):
            raise ConfigurationError(
                f"taskguard_listeners={self.listeners!r} must be a list of functions; write [function, …]"
            )
        if self.tasks is not None and not _is_by_pattern(self.tasks):
            raise ConfigurationError(
                f'taskguard_tasks={self.tasks!r} must be options by pattern; write {{"billing.*": {{"lease": 60}}}}'
            )

        self.timing  # noqa: B018 - checks what belongs to it

    @property
    def timing(self) -> Timing:
        return Timing(self.overlap, self.catch_up, self.catch_up_window)

    @classmethod
    def of(cls, app: Celery, given: Mapping[str, Any]) -> Settings:
        """The arguments of `install`; for those not given, the app's configuration."""
        configured = {
            field.name: app.conf[f"taskguard_{field.name}"]
            for field in fields(cls)
            if app.conf.get(f"taskguard_{field.name}") is not None
        }
        return cls(**{**configured, **given})

    @property
    def patience_at_the_end(self) -> float:
        """Seconds that the end of a body waits for an unavailable store, while its worker lives.

        A body that has run must not run again because of an outage, unless the app chose not to wait.
        """
        return UNTIL_THE_STORE_IS_BACK if self.on_store_error == "retry" else 0.0


def check_spelling(app: Celery) -> None:
    """Raise `ConfigurationError` for an unknown `taskguard_*` setting: Celery itself accepts any name."""
    known = [field.name for field in fields(Settings)]
    for setting in app.conf:
        before, ours, name = str(setting).lower().partition("taskguard_")
        if not ours or name in known:
            continue
        near = difflib.get_close_matches(name, known, 1, cutoff=0.75)
        if near:
            raise ConfigurationError(f"there is no setting {setting} (did you mean taskguard_{near[0]}?)")
        if name in _OF_TASKS:
            raise ConfigurationError(
                f"there is no setting {setting}; {name} is an option of a task: write @singleton_task(app, {name}=…), "
                f'or taskguard_tasks={{"*": {{"{name}": …}}}}'
            )
        if not before:
            raise ConfigurationError(
                f"there is no setting {setting}; write one of: " + ", ".join(f"taskguard_{name}" for name in known)
            )


_OF_TASKS = frozenset(field.name for field in fields(Policy) if field.init)


def checked_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """The given settings; raises `ConfigurationError` for an unknown name."""
    known = [field.name for field in fields(Settings)]
    for name in given:
        if name not in known:
            raise ConfigurationError(f"install() has no setting {name}; it has: {', '.join(known)}")
    return {name: value for name, value in given.items() if value is not None}


def _are_functions(listeners: Any) -> bool:
    return isinstance(listeners, Collection) and all(callable(listener) for listener in listeners)


def _is_by_pattern(tasks: Any) -> bool:
    return isinstance(tasks, Mapping) and all(
        isinstance(pattern, str) and isinstance(options, Mapping) for pattern, options in tasks.items()
    )


# -- what the app itself has -------------------------------------------------------------------------------------


def store_of(app: Celery) -> str:
    """The URL of the app's own broker or result backend, if it can be a store."""
    for url, tls in ((app.conf.broker_url, "broker_use_ssl"), (app.conf.result_backend, "redis_backend_use_ssl")):
        store = _as_store(_first(url), app.conf.get(tls))
        if store:
            return store
    raise ConfigurationError(
        "taskguard needs a store, and neither the broker nor the result backend of this app can be one; "
        'set app.conf.taskguard_store = "redis://…", "postgresql://…" or "sqlite:///…"'
    )


def _as_store(url: str, tls: Any) -> str:
    if url.startswith("redis+socket://"):
        return "unix://" + url.removeprefix("redis+socket://").replace("virtual_host=", "db=")
    if url.startswith(("redis://", "rediss://", "valkey://", "valkeys://")):
        return _with_tls(url, tls)
    url = url.removeprefix("sqla+").removeprefix("db+")
    if url.startswith(("postgresql://", "postgresql+psycopg://", "postgresql+psycopg2://", "postgres://")):
        return "postgresql://" + url.partition("://")[2]
    # As in our URLs, in SQLAlchemy's three slashes mean a relative path and four an absolute one.
    return url if url.startswith("sqlite:///") and len(url) > len("sqlite:///") else ""


def _with_tls(url: str, tls: Any) -> str:
    """Add Celery's TLS setting to the URL, where redis-py reads it."""
    if not tls:
        return url
    names = {ssl.CERT_NONE: "none", ssl.CERT_OPTIONAL: "optional", ssl.CERT_REQUIRED: "required"}
    options = {name: names.get(value, value) for name, value in tls.items()} if isinstance(tls, Mapping) else {}
    secure = "rediss://" + url.partition("://")[2]
    return f"{secure}{'&' if '?' in secure else '?'}{urlencode(options)}" if options else secure


def visibility_timeout(app: Celery) -> float:
    """Seconds after which the broker redelivers an unacknowledged message."""
    options = app.conf.broker_transport_options or {}
    usual = _VISIBILITY_TIMEOUTS.get(transport_of(app), VISIBILITY_TIMEOUT)
    return float(options.get("visibility_timeout") or usual)


def transport_of(app: Celery) -> str:
    """The transport of the app's messages: redis, amqp, sqs, …"""
    return broker_of(app).partition("://")[0].partition("+")[0].lower()


def broker_of(app: Celery) -> str:
    """The URL of the app's broker; the first if there are several."""
    return _first(app.conf.broker_url)


def _first(url: Any) -> str:
    return str(url[0] if isinstance(url, (list, tuple)) and url else url or "").split(";")[0]
