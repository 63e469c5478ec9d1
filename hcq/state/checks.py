"""Arguments from callers: numbers in ranges, and options of the types that a function declares."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import math
import operator
import os
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from ugpu.hcq.errors import BadArgument

WORD = 1 << 64  # values of timelines are below
_MOST_WATTS = 100_000.0  # no board uses more


def whole(name: str, value: object, least: int, limit: int) -> int:
    """Return `value` as an int of at least `least` and below `limit`; BadArgument for anything
    else."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # raises for other types
    except TypeError:
        raise BadArgument(f"{name} must be an int, got {value!r}") from None
    if not least <= number < limit:
        raise BadArgument(f"{name} must be from {least} to {limit - 1}, got {number}")
    return number


def seconds(name: str, value: object) -> float:
    """Return `value` as a time to wait: finite, not negative; BadArgument for anything else."""
    if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise BadArgument(f"{name} must be a finite number of seconds, 0 or more, got {value!r}")
    return float(value)


def watts(name: str, value: object) -> float:
    """Return `value` as a power limit: a positive number of watts; BadArgument for anything
    else."""
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if not 0 < number < _MOST_WATTS:
        raise BadArgument(f"{name} must be a positive number of watts, got {value!r}")
    return float(number)


def option_types(
    function: Callable[..., Any], options: Mapping[str, object]
) -> None:  # Any: whatever it returns
    """Raise BadArgument for an option whose type does not match the declaration of `function`'s
    parameter."""
    for name, hint in _hints(function).items():
        if name in options and not _fits(options[name], hint):
            expected = _described(hint)
            raise BadArgument(f"{name} must be {expected}, got {options[name]!r}")


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:  # Any: hints are of any kind
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isclass(function):
        function = function.__init__
    return typing.get_type_hints(function)


def _fits(value: object, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if hint is Any or hint is object:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in typing.get_args(hint))
    if origin is typing.Literal:
        return value in typing.get_args(hint)
    if hint is int:
        return hasattr(value, "__index__")
    if hint is float:
        return isinstance(value, int | float)
    kind = hint if origin is None else origin
    return isinstance(value, kind) if isinstance(kind, type) else True


def _described(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if hint is type(None):
        return "None"
    if origin in (typing.Union, types.UnionType):
        parts = [_described(part) for part in typing.get_args(hint)]
        return " or ".join(part for part in parts if part != "None" or len(parts) == 1)
    if origin is typing.Literal:
        return " or ".join(map(repr, typing.get_args(hint)))
    if origin is collections.abc.Callable:
        return "callable"
    name = getattr(hint, "__name__", str(hint))
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def path_like(name: str, value: object) -> str:
    """Return `value` as a path; BadArgument if it does not name one."""
    if not isinstance(value, str | os.PathLike):
        raise BadArgument(f"{name} must be a path, got {value!r}")
    path = os.fspath(value)
    if not isinstance(path, str) or "\0" in path or not path:
        raise BadArgument(f"{name} must be a path, got {value!r}")
    return path
