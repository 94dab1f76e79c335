"""Plain values, made by their fields in order or by name.

As dataclasses are; but a dataclass costs as much to define as a request to the store, and a work horse imports all of
this for each job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        return lambda kind: kind


@dataclass_transform(eq_default=True)
class Value:
    _fields: ClassVar[tuple[str, ...]] = ()
    _defaults: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        own = [name for name in cls.__annotations__ if not name.startswith("_")]
        cls._fields = (*cls._fields, *own)
        cls._defaults = {**cls._defaults, **{name: vars(cls)[name] for name in own if name in vars(cls)}}

    def __init__(self, *values: Any, **named: Any) -> None:
        vars(self).update(self._defaults)
        vars(self).update(zip(self._fields, values, strict=False))
        vars(self).update(named)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]
