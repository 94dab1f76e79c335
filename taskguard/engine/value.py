"""Plain values, created by keyword arguments.

They are like dataclasses. But defining a dataclass costs as much as a request to the store, and a work horse imports
all of this for each job. The default of a field is the class attribute, so one call into C makes a value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform

    class SimpleNamespace:  # the real one has any attribute, to a type checker
        def __init__(self, **fields: Any) -> None: ...

else:
    from types import SimpleNamespace

    def dataclass_transform(**_: Any) -> Any:
        return lambda kind: kind


@dataclass_transform(eq_default=True, kw_only_default=True)
class Value(SimpleNamespace):
    _fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls._fields = (*cls._fields, *[name for name in cls.__annotations__ if name not in cls._fields])

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(getattr(self, name) == getattr(other, name) for name in self._fields)

    __hash__ = None  # type: ignore[assignment]
