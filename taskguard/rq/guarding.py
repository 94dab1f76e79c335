"""One guarded function of RQ; and the guard of one connection."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal, cast

import redis
from redis import Redis
from rq import Queue
from rq.serializers import DefaultSerializer

from taskguard.engine.envelope import Envelope
from taskguard.engine.guarded import GuardedFunction, part_of
from taskguard.engine.store_identity import Identity
from taskguard.errors import ConfigurationError, StoreError
from taskguard.events import Listener
from taskguard.fence import current_fence
from taskguard.guard import Guard
from taskguard.history import HistoryOption, Recorder, check_history_option
from taskguard.keys.maker import KeyMaker
from taskguard.keys.signatures import fence_parameter, signature_of
from taskguard.protocol.names import check_namespace
from taskguard.protocol.policy import Policy
from taskguard.protocol.store import Store
from taskguard.rq.outcomes import QueueOutcomes
from taskguard.runtime.evictions import OnEvictingStore, check_on_evicting_store
from taskguard.stores.redis import RedisStore
from taskguard.stores.redis_wire import Lent

BEGUN = "_taskguard_begun"
"""An attribute of a job whose body runs: a call of the function inside that body is a direct call, not the job."""
_GUARDS = "_taskguard_guards"
_OWN = "own:"
"""The prefix of a store name that means the queue's own Redis: every process that has the job uses that server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of the decorator that concern the queue more than the function."""

    store: Store | str | None = None
    """Where entries live. None: in the queue's own Redis, over the queue's connections."""
    namespace: str = "taskguard"
    queued_for: float = 86400.0
    """Seconds that a queued entry waits for a worker, in addition to its delay, but not past the job's `ttl`."""
    on_store_error: Literal["retry", "fail", "run_unguarded"] = "retry"
    on_evicting_store: OnEvictingStore = "warn"
    """What to do if the store's server evicts entries when its memory is full."""
    listeners: Sequence[Listener] = ()
    history: HistoryOption = True
    """Whether decisions are kept in the store, for `taskguard explain`, `stats` and `watch`.

    "arguments": with the values of each call.
    """

    def __post_init__(self) -> None:
        if self.on_store_error not in ("retry", "fail", "run_unguarded"):
            raise ConfigurationError(
                f"on_store_error={self.on_store_error!r} is not known; write retry, fail or run_unguarded"
            )
        value = self.queued_for
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 10 * 365 * 86400:
            raise ConfigurationError(f"queued_for must be a positive number of seconds, not {value!r}")
        if not isinstance(self.listeners, (list, tuple)) or not all(map(callable, self.listeners)):
            raise ConfigurationError(f"listeners={self.listeners!r} must be a list of functions; write [function, …]")
        if not (self.store is None or isinstance(self.store, str) or callable(getattr(self.store, "claim", None))):
            raise ConfigurationError(f"store must be the URL of a store, or a store, not {self.store!r}")
        check_on_evicting_store("on_evicting_store", self.on_evicting_store)
        check_history_option("history", self.history)
        check_namespace(self.namespace)


class JobGuard(GuardedFunction):
    """The policy, settings and keys of a guarded function: `function.taskguard`."""

    # Properties are computed on first use: a work horse imports the whole module for each job and runs one function of
    # it.

    def __init__(
        self,
        function: Callable[..., Any],
        options: Mapping[str, Any],
        queue: Queue | str | None = None,
        connection: Redis | None = None,
        *,
        is_checked: bool = False,
        is_named: bool = False,
    ) -> None:
        self.function = function
        self.name = f"{function.__module__}.{function.__qualname__}"
        self._options = options
        self._is_checked = is_checked
        """The process that enqueued the job imported the module and raised on wrong options there."""
        self._is_named = is_named
        """Guarded by name only: it expects no fence, so all its parameters are its callers'."""
        self._queue = queue
        self._connection = connection
        self._store: Store | None = None
        self._guards: dict[int, Guard] = {}
        self._identity = Identity()

    def check(self) -> None:
        """Raise `ConfigurationError` for options that cannot work."""
        _check_names(self._options)  # always: an unknown option would never raise later
        if not self._is_checked:
            _ = self.policy, self.settings, self.keys

    @property
    def is_named_in_payloads(self) -> bool:
        # Without a key space the name is already part of the key.
        return self.policy.key_space is not None

    @cached_property
    def policy(self) -> Policy:  # type: ignore[override]
        options = part_of(self._options, _POLICY)
        return Policy.trusted(**options) if self._is_checked else Policy.of(**options)

    @cached_property
    def settings(self) -> Settings:
        return Settings(**part_of(self._options, _SETTINGS))

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """RQ's options for calls that do not give their own."""
        rq_options = part_of(self._options, _RQ)
        if "timeout" in rq_options:  # as RQ's own decorator spells it
            rq_options["job_timeout"] = rq_options.pop("timeout")
        return rq_options

    @cached_property
    def keys(self) -> KeyMaker:  # type: ignore[override]
        # Celery names tasks the same way: without the prefix, both would share keys without `key_space`.
        signature = signature_of(self.function, skip=() if self._is_named else ("fence",))
        return self.policy.keys_for(signature, f"rq:{self.name}")

    @cached_property
    def fence_name(self) -> str | None:
        """The parameter that receives the fence."""
        # In a work horse, reading a signature costs as much as a request to Redis; most functions do not need it.
        if self._is_named or not _may_want_fence(self.function):
            return None
        return fence_parameter(self.function)

    @property
    def destination(self) -> Queue:
        """Where `function.enqueue` puts its jobs: the given queue, or a plain RQ queue of that name."""
        if isinstance(self._queue, Queue):
            return self._queue
        if self._queue is None or self._connection is None:
            raise ConfigurationError(
                f"{self.name} has no queue; write @singleton_task(queue=…, connection=…), or "
                "enqueue it with a GuardedQueue"
            )
        self._queue = Queue(self._queue, connection=self._connection)
        return self._queue

    def guard(self, connection: Redis, serializer: Any = DefaultSerializer) -> Guard:
        """The guard for jobs of that connection, with results in that serializer."""
        if connection.connection_pool.connection_kwargs.get("decode_responses"):
            raise ConfigurationError(
                "RQ cannot read its jobs over a connection with decode_responses=True, so a duplicate could not "
                "get the holder's job; give the queue a connection without it"
            )
        settings = self.settings
        return guard_on(connection, serializer, settings) if settings.store is None else self._guard(serializer)

    def _guard(self, serializer: Any) -> Guard:
        """The guard on a store other than the queue's Redis."""
        if id(serializer) not in self._guards:
            self._guards[id(serializer)] = _make_guard(
                self._open_store(), serializer, self.settings, history=bool(self.settings.history)
            )
        return self._guards[id(serializer)]

    def _open_store(self) -> Store:
        store = self.settings.store
        if self._store is None and isinstance(store, str):
            from taskguard.stores.unusable import open_for_queue  # most have no store but the queue's own Redis

            self._store = open_for_queue(store, namespace=self.settings.namespace)
        return self._store or store  # type: ignore[return-value]

    def named_by(self, queue: Queue) -> str:
        """The class of the queue, if that class guards the function by name. It travels with each job.

        A worker may not have it: RQ's worker pools give their workers plain queues (up to 2.12 at least).
        """
        return f"{type(queue).__module__}.{type(queue).__qualname__}" if self._is_named else ""

    def store_name(self, guard: Guard, patience: float) -> str:
        """What the store is called; it travels with each job."""
        return self.known_store_name or self._identity.name(guard, patience)

    @property
    def known_store_name(self) -> str:
        return _OWN + self.settings.namespace if self.settings.store is None else self._identity.known

    def is_for_another_store(self, guard: Guard, envelope: Envelope, connection: Redis) -> bool:
        """Whether the caller claimed the job in another store than this process uses."""
        if not envelope.store or (self.settings.store is None and envelope.store == self.store_name(guard, 0.0)):
            return False
        namespace = own_namespace(envelope.store)
        if namespace is None:
            return self._identity.is_other(guard, envelope.store, envelope.at)
        in_queue_redis = replace(self.settings, store=None, namespace=namespace)
        own = Identity().name(guard_on(connection, DefaultSerializer, in_queue_redis), guard.patience)
        return own != self._identity.name(guard, guard.patience)

    def call(self, args: Any, kwargs: Any) -> Any:
        """Call the function itself, with the fence if it takes one."""
        name = self.fence_name
        if name is None:
            return self.function(*args, **kwargs)
        if name in kwargs:
            raise TypeError(f"{self.name}(): the guard passes {name!r}; leave it out of the call")
        fence = current_fence()
        if fence is not None:
            return self.function(*args, **kwargs, **{name: fence})
        from taskguard.engine.unguarded import fence_of_direct_call  # a job does not need it

        with fence_of_direct_call(self.keys, args, kwargs) as fence:
            return self.function(*args, **kwargs, **{name: fence})

    @property
    def own_guard(self) -> Guard:
        if self.settings.store is not None:
            return self._guard(DefaultSerializer)
        return self.guard(self.destination.connection, self.destination.serializer)

    @cached_property
    def shows_arguments(self) -> bool:  # type: ignore[override]
        return self.settings.history == "arguments"


# -- the guard of a connection -----------------------------------------------------------------------------------


def guard_on(connection: Redis, serializer: Any, settings: Settings = Settings()) -> Guard:  # noqa: B008 - it is frozen
    """The guard whose store is the queue's own Redis. The connection pool keeps it, so it lives as long as the pool.

    All functions of a connection share one guard, so that one thread renews for them.
    """
    found = vars(connection.connection_pool).setdefault(_GUARDS, {})
    which = (
        settings.namespace,
        id(serializer),
        tuple(settings.listeners),
        bool(settings.history),
        settings.on_evicting_store,
    )
    if which not in found:
        # A work horse already has a connection for its one job: the store shares it.
        store = RedisStore(Lent(connection.connection_pool, shares=True), namespace=settings.namespace)
        found[which] = made = _make_guard(store, serializer, settings, history=False)
        if settings.history:
            _record(made, _recorder_on(connection.connection_pool, store, settings.namespace))
    guard: Guard = found[which]
    return guard


def warm(connection: Redis, serializer: Any) -> None:
    """Prepare what every work horse needs, in the process that forks them."""
    store = cast(RedisStore, guard_on(connection, serializer).store)
    Policy.trusted()
    _learn_version(connection)
    with suppress(StoreError):
        store.wire.learn_silence()  # then a horse does not wait for a reply to its last write
        store.eviction.learn(store.eviction_policy)  # and does not ask for the eviction policy


def _learn_version(connection: Redis) -> None:
    """Newer redis-py reads its own version from disk for each new connection, and each horse makes one."""
    describe = getattr(redis, "DriverInfo", None)
    options = connection.connection_pool.connection_kwargs
    if describe is not None and not options.keys() & {"driver_info", "lib_name", "lib_version"}:
        options["driver_info"] = describe()


def _make_guard(store: Store, serializer: Any, settings: Settings, *, history: bool) -> Guard:
    guard = Guard(
        store,
        outcomes=QueueOutcomes(serializer),
        history=history,
        on_evicting_store=settings.on_evicting_store,
    )
    for listener in settings.listeners:
        guard.listeners.add(listener)
    return guard


def _recorder_on(pool: redis.ConnectionPool, store: RedisStore, namespace: str) -> Recorder:
    """One for each server. It has a thread and a connection for a minute, and some projects make a client for each
    call."""
    known = {name: pool.connection_kwargs.get(name) for name in ADDRESS}
    if known["host"] is None and known["path"] is None:
        return Recorder(store.history)  # for example behind a Sentinel
    which = (pool.connection_class, namespace, *known.values())
    if which not in _recorders:
        _recorders[which] = Recorder(store.history)
    return _recorders[which]


def _record(guard: Guard, recorder: Recorder) -> None:
    guard.recorder = recorder
    guard.listeners.add(recorder)
    guard.heartbeat.on_renewal = recorder.go_on


ADDRESS = ("host", "port", "path", "db", "username", "password")
_recorders: dict[tuple[Any, ...], Recorder] = {}


def own_namespace(store_name: str) -> str | None:
    """The namespace in the queue's own Redis; None if the name is that of another store."""
    return store_name.removeprefix(_OWN) if store_name.startswith(_OWN) else None


# -- finding it --------------------------------------------------------------------------------------------------


def _may_want_fence(function: Any) -> bool:
    code = function.__code__
    if hasattr(function, "__wrapped__") or "fence" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        return True
    try:
        return "Fence" in str(function.__annotations__)
    except NameError:  # Python 3.14 evaluates them here, and they may name imports of TYPE_CHECKING only
        return True


def guard_of(function: Any) -> JobGuard | None:
    """What the function was decorated with. A function given by its path is looked up, never imported."""
    if isinstance(function, str):
        function = _loaded(function)
    found = getattr(function, "taskguard", None)
    return found if isinstance(found, JobGuard) else None


def guard_for(function: Any, queue: Any) -> JobGuard | None:
    """What the function was decorated with; else what its queue's `taskguard_tasks` has for its name, if anything."""
    if isinstance(function, str):
        function = _loaded(function)
    patterns = getattr(queue, "taskguard_tasks", None)
    found = guard_of(function)
    return _guard_by_name(getattr(function, "__func__", function), patterns) if found is None and patterns else found


def _guard_by_name(function: Any, patterns: Mapping[str, Mapping[str, Any]]) -> JobGuard | None:
    if not inspect.isfunction(function):
        return None
    name = f"{function.__module__}.{function.__qualname__}"
    options = next((options for pattern, options in patterns.items() if fnmatchcase(name, pattern)), None)
    if options is None:
        return None
    made = _by_name.get(function)
    if made is None or made[0] is not options:
        guarded = JobGuard(function, options, is_named=True)
        guarded.check()
        made = _by_name[function] = options, guarded
    return made[1]


_by_name: dict[Any, tuple[Any, JobGuard]] = {}


def _loaded(path: str) -> Any:
    """The object with that path, in a module that this process has already loaded."""
    parts = path.split(".")
    for split in range(len(parts) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(parts[:split]))
        if found is not None:
            for part in parts[split:]:
                found = getattr(found, part, None)
            return found
    return None


# -- options -----------------------------------------------------------------------------------------------------

_POLICY = frozenset(field.name for field in fields(Policy) if field.init)
_SETTINGS = frozenset(field.name for field in fields(Settings))
_NOT_OPTIONS = {"func", "args", "kwargs", "job_id"}
_RQ = frozenset(inspect.signature(Queue.prepare_data).parameters) - _NOT_OPTIONS | {"job_timeout"}


def _check_names(options: Mapping[str, Any]) -> None:
    unknown = options.keys() - (_POLICY | _SETTINGS | _RQ)
    if unknown:
        from taskguard.protocol.options import problem_with_option

        ours = [field.name for kind in (Policy, Settings) for field in fields(kind) if field.init]
        problems = [problem_with_option(name, options[name], ours, _RQ, ", or an option of RQ's") for name in unknown]
        raise ConfigurationError("\n".join(sorted(problems)))
