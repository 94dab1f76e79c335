"""What type checkers and editors know of a guarded task. Nothing here is imported when a program runs.

A task keeps the parameters and the result of its function. A type cannot leave out the *last* parameter of a function, so
of one that wants a fence the arguments by position are checked, and those by name are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal, ParamSpec, Protocol, TypeAlias, TypeVar

from taskguard.fence import Fence

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")
R_co = TypeVar("R_co", covariant=True)
A = TypeVar("A")
B = TypeVar("B")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")
G = TypeVar("G")

Seconds: TypeAlias = float | timedelta
Conflict: TypeAlias = Literal["skip", "raise", "wait", "run_once_more"]
"""Those that the queues support."""
OnConflict: TypeAlias = Conflict | Mapping[Literal["enqueue", "run"], Conflict]

# -- functions that are given their fence by name ------------------------------------------------------------------

class ByName0(Protocol[R_co]):
    def __call__(self, *, fence: Fence) -> R_co: ...

class ByName1(Protocol[R_co]):
    def __call__(self, _0: Any, /, *, fence: Fence) -> R_co: ...

class ByName2(Protocol[R_co]):
    def __call__(self, _0: Any, _1: Any, /, *, fence: Fence) -> R_co: ...

class ByName3(Protocol[R_co]):
    def __call__(self, _0: Any, _1: Any, _2: Any, /, *, fence: Fence) -> R_co: ...

class ByName4(Protocol[R_co]):
    def __call__(self, _0: Any, _1: Any, _2: Any, _3: Any, /, *, fence: Fence) -> R_co: ...

class ByName5(Protocol[R_co]):
    def __call__(self, _0: Any, _1: Any, _2: Any, _3: Any, _4: Any, /, *, fence: Fence) -> R_co: ...

class ByName6(Protocol[R_co]):
    def __call__(self, _0: Any, _1: Any, _2: Any, _3: Any, _4: Any, _5: Any, /, *, fence: Fence) -> R_co: ...
