"""The types of guarded functions of RQ's; see `taskguard.typed`."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, Literal, Protocol, overload

from redis import Redis
from rq import Queue
from rq.job import Job

from taskguard.engine.call_info import CallInfo
from taskguard.events import Listener
from taskguard.fence import Fence
from taskguard.history import HistoryOption
from taskguard.keys.choice import By
from taskguard.protocol.policy import Done, Hold, Lost
from taskguard.protocol.store import Store
from taskguard.rq.guarding import JobGuard
from taskguard.runtime.evictions import OnEvictingStore
from taskguard.typed import (
    A,
    B,
    ByName0,
    ByName1,
    ByName2,
    ByName3,
    ByName4,
    ByName5,
    ByName6,
    D,
    E,
    F,
    G,
    OnConflict,
    P,
    R,
    Seconds,
)

class GuardedJob(Job):
    """What a call returns: RQ's own job, and what the guard has to say of the call."""

    taskguard: CallInfo

class SingletonTask(Generic[P, R]):
    """A function that keeps its parameters. `delay` takes them alone; `enqueue` takes RQ's options too, and checks neither."""

    taskguard: JobGuard
    __name__: str
    __qualname__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def delay(self, *args: P.args, **kwargs: P.kwargs) -> GuardedJob: ...
    def enqueue(self, *args: Any, **kwargs: Any) -> GuardedJob: ...
    def enqueue_at(self, moment: datetime, /, *args: Any, **kwargs: Any) -> GuardedJob: ...
    def enqueue_in(self, delay: timedelta, /, *args: Any, **kwargs: Any) -> GuardedJob: ...
    def __get__(self, instance: object, owner: type | None = None) -> Any: ...

class SingletonTask1(SingletonTask[..., R], Generic[A, R]):
    def __call__(self, a: A = ..., /, *args: Any, **kwargs: Any) -> R: ...
    def delay(self, a: A = ..., /, *args: Any, **kwargs: Any) -> GuardedJob: ...

class SingletonTask2(SingletonTask[..., R], Generic[A, B, R]):
    def __call__(self, a: A = ..., b: B = ..., /, *args: Any, **kwargs: Any) -> R: ...
    def delay(self, a: A = ..., b: B = ..., /, *args: Any, **kwargs: Any) -> GuardedJob: ...

class SingletonTask3(SingletonTask[..., R], Generic[A, B, D, R]):
    def __call__(self, a: A = ..., b: B = ..., d: D = ..., /, *args: Any, **kwargs: Any) -> R: ...
    def delay(self, a: A = ..., b: B = ..., d: D = ..., /, *args: Any, **kwargs: Any) -> GuardedJob: ...

class SingletonTask4(SingletonTask[..., R], Generic[A, B, D, E, R]):
    def __call__(self, a: A = ..., b: B = ..., d: D = ..., e: E = ..., /, *args: Any, **kwargs: Any) -> R: ...
    def delay(self, a: A = ..., b: B = ..., d: D = ..., e: E = ..., /, *args: Any, **kwargs: Any) -> GuardedJob: ...

class SingletonTask5(SingletonTask[..., R], Generic[A, B, D, E, F, R]):
    def __call__(
        self, a: A = ..., b: B = ..., d: D = ..., e: E = ..., f: F = ..., /, *args: Any, **kwargs: Any
    ) -> R: ...
    def delay(
        self, a: A = ..., b: B = ..., d: D = ..., e: E = ..., f: F = ..., /, *args: Any, **kwargs: Any
    ) -> GuardedJob: ...

class SingletonTask6(SingletonTask[..., R], Generic[A, B, D, E, F, G, R]):
    def __call__(
        self, a: A = ..., b: B = ..., d: D = ..., e: E = ..., f: F = ..., g: G = ..., /, **kwargs: Any
    ) -> R: ...
    def delay(
        self, a: A = ..., b: B = ..., d: D = ..., e: E = ..., f: F = ..., g: G = ..., /, **kwargs: Any
    ) -> GuardedJob: ...

class Decorator(Protocol):
    @overload
    def __call__(self, function: Callable[[Fence], R], /) -> SingletonTask[..., R]: ...
    @overload
    def __call__(self, function: Callable[[A, Fence], R], /) -> SingletonTask1[A, R]: ...
    @overload
    def __call__(self, function: Callable[[A, B, Fence], R], /) -> SingletonTask2[A, B, R]: ...
    @overload
    def __call__(self, function: Callable[[A, B, D, Fence], R], /) -> SingletonTask3[A, B, D, R]: ...
    @overload
    def __call__(self, function: Callable[[A, B, D, E, Fence], R], /) -> SingletonTask4[A, B, D, E, R]: ...
    @overload
    def __call__(self, function: Callable[[A, B, D, E, F, Fence], R], /) -> SingletonTask5[A, B, D, E, F, R]: ...
    @overload
    def __call__(self, function: Callable[[A, B, D, E, F, G, Fence], R], /) -> SingletonTask6[A, B, D, E, F, G, R]: ...
    @overload
    def __call__(self, function: ByName0[R], /) -> SingletonTask[..., R]: ...
    @overload
    def __call__(self, function: ByName1[R], /) -> SingletonTask[..., R]: ...
    @overload
    def __call__(self, function: ByName2[R], /) -> SingletonTask[..., R]: ...
    @overload
    def __call__(self, function: ByName3[R], /) -> SingletonTask[..., R]: ...
    @overload
    def __call__(self, function: ByName4[R], /) -> SingletonTask[..., R]: ...
    @overload
    def __call__(self, function: ByName5[R], /) -> SingletonTask[..., R]: ...
    @overload
    def __call__(self, function: ByName6[R], /) -> SingletonTask[..., R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> SingletonTask[P, R]: ...

@overload  # without brackets: how many parameters come before the fence is not looked at
def singleton_task(function: Callable[..., R], /) -> SingletonTask[..., R]: ...
@overload
def singleton_task(
    *,
    queue: Queue | str | None = None,
    connection: Redis | None = None,
    key: By = None,
    hold: Hold = "until_done",
    on_conflict: OnConflict = "skip",
    on_done: Done = "rerun",
    lease: Seconds = 30,
    key_space: str | None = None,
    keep_for: Seconds | None = None,
    hold_at_most: Seconds | None = None,
    hold_at_least: Seconds | None = None,
    wait_up_to: Seconds = 3600,
    max_starts: int = 3,
    on_lost: Lost = "abort",
    enforce: bool = True,
    readable_keys: bool = True,
    store: Store | str | None = None,
    namespace: str = "taskguard",
    queued_for: float = 86400.0,
    on_store_error: Literal["retry", "fail", "run_unguarded"] = "retry",
    on_evicting_store: OnEvictingStore = "warn",
    listeners: Sequence[Listener] = (),
    history: HistoryOption = True,
    **options: Any,
) -> Decorator: ...
