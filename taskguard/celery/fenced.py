"""The body of a task that takes a fence."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from taskguard.engine.unguarded import fence_of_direct_call
from taskguard.errors import ConfigurationError
from taskguard.fence import current_fence
from taskguard.keys.maker import KeyMaker
from taskguard.keys.signatures import fence_parameter, read_signature


def with_fence(function: Callable[..., Any], keys: KeyMaker, *, bound: bool) -> Callable[..., Any]:
    """The function as its callers see it: without the fence, which the guard passes when it runs.

    A direct call gets a fence that guards nothing.
    """
    name = fence_parameter(function)
    if name is None:
        return function

    @functools.wraps(function)
    def fenced(*args: Any, **kwargs: Any) -> Any:
        if name in kwargs:
            raise TypeError(f"{function.__qualname__}(): the guard passes {name!r}; leave it out of the call")
        fence = current_fence()
        if fence is not None:
            return function(*args, **kwargs, **{name: fence})
        with fence_of_direct_call(keys, args[1:] if bound else args, kwargs) as fence:
            return function(*args, **kwargs, **{name: fence})

    signature = read_signature(function)
    rest = [parameter for parameter in signature.parameters.values() if parameter.name != name]
    if signature.parameters[name].kind is inspect.Parameter.POSITIONAL_ONLY:
        raise ConfigurationError(
            f"{function.__qualname__}: the guard passes {name} by name, so it cannot be positional-only; "
            "move it after the /"
        )
    fenced.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
    fenced.__annotations__ = {key: value for key, value in function.__annotations__.items() if key != name}
    return fenced
