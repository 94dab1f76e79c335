"""What a function takes from its caller, and where it wants its fence."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import UnionType
from typing import Union, get_args, get_origin
from weakref import WeakKeyDictionary

from taskguard.errors import ConfigurationError

if sys.version_info >= (3, 14):
    from annotationlib import Format

    # Annotations are evaluated when read, and one that is imported for type checkers alone cannot be.
    read_signature = partial(inspect.signature, annotation_format=Format.FORWARDREF)
else:
    read_signature = inspect.signature


def signature_of(
    function: Callable[..., object], *, skip: Sequence[str] = ("fence",), bound: bool = False
) -> inspect.Signature:
    """The parameters that a caller fills: without the fence, those named in *skip*, and a *bound* task's first one."""
    try:
        signature = read_signature(function)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"the parameters of {function!r} cannot be read ({error}); wrap it in a plain function"
        ) from None
    parameters = list(signature.parameters.values())
    if bound:
        parameters = _without_first(function, parameters)
    return signature.replace(parameters=[p for p in parameters if p.name not in skip and not takes_fence(p)])


_found: WeakKeyDictionary[Callable[..., object], str | None] = WeakKeyDictionary()
"""What was found of functions that somebody still uses."""


def fence_parameter(function: Callable[..., object]) -> str | None:
    """The name of the parameter that is given the fence: the one annotated `Fence`, else the one named `fence`."""
    function = getattr(function, "__func__", function)  # a method is made anew each time it is looked at
    try:
        return _found[function]
    except (KeyError, TypeError):  # some callables have no weak references, or no hash
        name = _fence_parameter(function)
    with suppress(TypeError):
        _found[function] = name
    return name


def _fence_parameter(function: Callable[..., object]) -> str | None:
    try:
        parameters = read_signature(function).parameters
    except (TypeError, ValueError):
        return None  # some built-in functions; none of them wants a fence
    annotated = (name for name, parameter in parameters.items() if takes_fence(parameter))
    return next(annotated, "fence" if "fence" in parameters else None)


def takes_fence(parameter: inspect.Parameter) -> bool:
    """Whether the parameter is annotated `Fence`, as a class, as text or in a union with something else."""
    annotation = parameter.annotation
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return any(_names_fence(member) for member in members)


def _names_fence(annotation: object) -> bool:
    # Not compared with the class itself: this module is below the one that has it.
    text = getattr(annotation, "__forward_arg__", annotation)
    if isinstance(text, str):
        return any(part.strip("'\" ").rpartition(".")[2] == "Fence" for part in text.split("|"))
    return isinstance(annotation, type) and annotation.__name__ == "Fence"


def _without_first(function: Callable[..., object], parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    if not parameters:
        raise ConfigurationError(f"{function!r} is bound and takes no parameter; write self as its first one")
    # *args takes the task itself along with the rest, as with any method.
    return parameters if parameters[0].kind is inspect.Parameter.VAR_POSITIONAL else parameters[1:]


def runs_later(function: Callable[..., object]) -> bool:
    """Whether a call of *function* returns before its body has run."""
    is_generator = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    return is_generator or inspect.iscoroutinefunction(function)
