"""The methods of a class of tensors as a whole: their names, and those of the class, called on a
tensor: `x.cat([y])` joins x too, others refuse."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

from ugpu.compiler.methods.aliases import with_aliases
from ugpu.hcq.errors import BadArgument

T = TypeVar("T")
JOINING = ("cat", "stack", "meshgrid")  # of a sequence of tensors


def whole(tensor: type[T]) -> type[T]:
    """Rename the methods of all base classes to `Tensor.<name>`, for error messages and help().
    Public methods with an axis also accept PyTorch's argument names. Methods of the class do not
    ignore a tensor that they are called on."""
    for group in tensor.__mro__[:-1]:
        for name, member in list(vars(group).items()):
            method = getattr(member, "fget", None) or getattr(member, "__func__", member)
            if isinstance(method, FunctionType):
                method.__qualname__ = f"{tensor.__name__}.{method.__name__}"
            if name.startswith("_"):
                continue
            if isinstance(member, FunctionType):
                setattr(group, name, with_aliases(member))
            elif isinstance(member, classmethod | staticmethod):
                setattr(group, name, OfClass(member))
    return tensor


class OfClass:
    """A class or static method. On a tensor, a method that joins tensors puts this one first; any
    other raises BadArgument, since it would ignore the tensor."""

    def __init__(self, member: classmethod[Any, Any, Any] | staticmethod[Any, Any]) -> None:
        function = member.__func__
        if isinstance(function, FunctionType):
            member = type(member)(with_aliases(function))
        self.member = member
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> Callable[..., Any]:
        bound: Callable[..., Any] = self.member.__get__(None, owner or type(instance))
        if instance is None:
            return bound
        if self.member.__name__ in JOINING:
            return _joining(bound, instance)
        return _refusing(bound)


def _joining(bound: Callable[..., Any], first: Any) -> Callable[..., Any]:
    @functools.wraps(bound)
    def joining(*others: Any, **options: Any) -> Any:
        tensors = [first, *options.pop("tensors", ())]
        for place, each in enumerate(others):
            if isinstance(each, list | tuple):
                tensors.extend(each)
            elif isinstance(each, type(first)):
                tensors.append(each)
            else:  # the axis, and what is refused
                return bound(tensors, *others[place:], **options)
        return bound(tensors, **options)

    return joining


def _refusing(bound: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(bound)
    def refusing(*_: Any, **__: Any) -> Any:
        name = bound.__qualname__
        raise BadArgument(
            f"{name} is called on the class; expected {name}(...), got a call on a tensor, which "
            "it would not use"
        )

    return refusing
