"""The types of guarded Celery tasks; see `taskguard.typed`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, Generic, Literal, Protocol, overload

from celery import Celery

from taskguard.celery.guarding import TaskGuard
from taskguard.engine.call_info import CallInfo
from taskguard.fence import Fence
from taskguard.keys.choice import By
from taskguard.protocol.policy import Done, Hold, Lost
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
    C,
    D,
    E,
    F,
    G,
    OnConflict,
    P,
    R,
    R_co,
    Seconds,
)

class Handle(Protocol[R_co]):
    """What a call returns: Celery's own result, and what the guard has to say of the call."""

    id: str
    taskguard: CallInfo
    state: str
    status: str
    result: Any

    def get(self, timeout: float | None = None, **options: Any) -> R_co: ...
    def ready(self) -> bool: ...
    def successful(self) -> bool: ...
    def failed(self) -> bool: ...
    def forget(self) -> None: ...
    def revoke(self, *args: Any, **options: Any) -> None: ...
    def __getattr__(self, name: str) -> Any: ...

class SingletonTask(Generic[P, R]):
    """A task that keeps the parameters of its function."""

    name: str
    request: Any
    taskguard: TaskGuard

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def run(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def delay(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]: ...
    def s(self, *args: Any, **kwargs: Any) -> Any: ...
    def si(self, *args: P.args, **kwargs: P.kwargs) -> Any: ...
    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        *,
        idempotency_key: str | None = None,
        task_id: str | None = None,
        countdown: float | None = None,
        eta: Any = None,
        expires: Any = None,
        queue: Any = None,
        priority: int | None = None,
        **options: Any,
    ) -> Handle[R]: ...
    def apply(self, args: Any = None, kwargs: Any = None, **options: Any) -> Handle[R]: ...
    def AsyncResult(self, task_id: str, **options: Any) -> Handle[R]: ...  # noqa: N802 - Celery's name
    def retry(self, *args: Any, **options: Any) -> Any: ...
    def __getattr__(self, name: str) -> Any: ...

class SingletonTask1(SingletonTask[..., R], Generic[A, R]):
    def __call__(self, a: A = ..., /, *args: Any, **kwargs: Any) -> R: ...
    def run(self, a: A = ..., /, *args: Any, **kwargs: Any) -> R: ...
    def delay(self, a: A = ..., /, *args: Any, **kwargs: Any) -> Handle[R]: ...
    def si(self, a: A = ..., /, *args: Any, **kwargs: Any) -> Any: ...

class SingletonTask2(SingletonTask[..., R], Generic[A, B, R]):
    def __call__(self, a: A = ..., b: B = ..., /, *args: Any, **kwargs: Any) -> R: ...
    def run(self, a: A = ..., b: B = ..., /, *args: Any, **kwargs: Any) -> R: ...
    def delay(self, a: A = ..., b: B = ..., /, *args: Any, **kwargs: Any) -> Handle[R]: ...
    def si(self, a: A = ..., b: B = ..., /, *args: Any, **kwargs: Any) -> Any: ...

class SingletonTask3(SingletonTask[..., R], Generic[A, B, D, R]):
    def __call__(self, a: A = ..., b: B = ..., d: D = ..., /, *args: Any, **kwargs: Any) -> R: ...
    def run(self, a: A = ..., b: B = ..., d: D = ..., /, *args: Any, **kwargs: Any) -> R: ...
    def delay(self, a: A = ..., b: B = ..., d: D = ..., /, *args: Any, **kwargs: Any) -> Handle[R]: ...
    def si(self, a: A = ..., b: B = ..., d: D = ..., /, *args: Any, **kwargs: Any) -> Any: ...

class SingletonTask4(SingletonTask[..., R], Generic[A, B, D, E, R]):
    def __call__(self, a: A = ..., b: B = ..., d: D = ..., e: E = ..., /, *args: Any, **kwargs: Any) -> R: ...
    def run(self, a: A = ..., b: B = ..., d: D = ..., e: E = ..., /, *args: Any, **kwargs: Any) -> R: ...
    def delay(self, a: A = ..., b: B = ..., d: D = ..., e: E = ..., /, *args: Any, **kwargs: Any) -> Handle[R]: ...
    def si(self, a: A = ..., b: B = ..., d: D = ..., e: E = ..., /, *args: Any, **kwargs: Any) -> Any: ...

class SingletonTask5(SingletonTask[..., R], Generic[A, B, D, E, F, R]):
    def __call__(
        self, a: A = ..., b: B = ..., d: D = ..., e: E = ..., f: F = ..., /, *args: Any, **kwargs: Any
    ) -> R: ...
    def run(self, a: A = ..., b: B = ..., d: D = ..., e: E = ..., f: F = ..., /, *args: Any, **kwargs: Any) -> R: ...
    def delay(
        self, a: A = ..., b: B = ..., d: D = ..., e: E = ..., f: F = ..., /, *args: Any, **kwargs: Any
    ) -> Handle[R]: ...
    def si(self, a: A = ..., b: B = ..., d: D = ..., e: E = ..., f: F = ..., /, *args: Any, **kwargs: Any) -> Any: ...

class SingletonTask6(SingletonTask[..., R], Generic[A, B, D, E, F, G, R]):
    def __call__(
        self, a: A = ..., b: B = ..., d: D = ..., e: E = ..., f: F = ..., g: G = ..., /, **kwargs: Any
    ) -> R: ...
    def run(
        self, a: A = ..., b: B = ..., d: D = ..., e: E = ..., f: F = ..., g: G = ..., /, *args: Any, **kwargs: Any
    ) -> R: ...
    def delay(
        self, a: A = ..., b: B = ..., d: D = ..., e: E = ..., f: F = ..., g: G = ..., /, **kwargs: Any
    ) -> Handle[R]: ...
    def si(
        self, a: A = ..., b: B = ..., d: D = ..., e: E = ..., f: F = ..., g: G = ..., /, *args: Any, **kwargs: Any
    ) -> Any: ...

class Decorator(Protocol):
    @overload  # a class is callable too, and comes first
    def __call__(self, task_class: type[C], /) -> C: ...  # type: ignore[overload-overlap]
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

class BoundDecorator(Protocol):
    @overload
    def __call__(self, function: Callable[[Any, Fence], R], /) -> SingletonTask[..., R]: ...
    @overload
    def __call__(self, function: Callable[[Any, A, Fence], R], /) -> SingletonTask1[A, R]: ...
    @overload
    def __call__(self, function: Callable[[Any, A, B, Fence], R], /) -> SingletonTask2[A, B, R]: ...
    @overload
    def __call__(self, function: Callable[[Any, A, B, D, Fence], R], /) -> SingletonTask3[A, B, D, R]: ...
    @overload
    def __call__(self, function: Callable[[Any, A, B, D, E, Fence], R], /) -> SingletonTask4[A, B, D, E, R]: ...
    @overload
    def __call__(self, function: Callable[[Any, A, B, D, E, F, Fence], R], /) -> SingletonTask5[A, B, D, E, F, R]: ...
    @overload
    def __call__(
        self, function: Callable[[Any, A, B, D, E, F, G, Fence], R], /
    ) -> SingletonTask6[A, B, D, E, F, G, R]: ...
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
    def __call__(self, function: Callable[Concatenate[Any, P], R], /) -> SingletonTask[P, R]: ...

@overload  # a class is callable too, and comes first
def singleton_task(task_class: type[C], /) -> C: ...  # type: ignore[overload-overlap]
@overload  # without brackets: how many parameters come before the fence is not looked at
def singleton_task(function: Callable[..., R], /) -> SingletonTask[..., R]: ...
@overload
def singleton_task(
    app: Celery | None = None,
    /,
    *,
    bind: Literal[True],
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
    name: str | None = None,
    base: Any = None,
    acks_late: bool = True,
    reject_on_worker_lost: bool = True,
    **options: Any,
) -> BoundDecorator: ...
@overload
def singleton_task(
    app: Celery | None = None,
    /,
    *,
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
    name: str | None = None,
    base: Any = None,
    bind: Literal[False] = False,
    acks_late: bool = True,
    reject_on_worker_lost: bool = True,
    **options: Any,
) -> Decorator: ...
