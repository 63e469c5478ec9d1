"""`function`: a decorator for what a program does many times, such as a network's layers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from compiler.front.jit import tensors_of
from compiler.front.outline import outline
from compiler.graph.node import new_period
from hcq.errors import NotSupported

Given = ParamSpec("Given")
Result = TypeVar("Result")


def function(wrapped: Callable[Given, Result]) -> Callable[Given, Result]:
    """Let calls of a function (or method) of tensors be planned once.

    What is computed is what would be without: the function runs in every call, with any arguments,
    may use tensors besides them, keep some, and assign. But its kernels do not reach beyond it:
    what it is given and what it gives is stored, and calls that compute the same from other tensors
    (a network's layers) share one schedule and one set of kernels, and the memory in between. Other
    shapes, types or plain values make another schedule. Results are looked for in lists, tuples and
    dicts. A call computes, when one of its results is asked for, all that are still referenced.
    NotSupported for results on several devices.
    """

    @functools.wraps(wrapped)
    def calling(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        since = new_period()
        result = wrapped(*args, **kwargs)
        tensors = tensors_of((result, args, kwargs))
        devices = {id(tensor.device): tensor.device.name for tensor in tensors}
        if len(devices) > 1:
            names = " and ".join(devices.values())
            raise NotSupported(
                f"function {calling.__qualname__}: all tensors must be on one device, got {names}"
            )
        outline(calling.__qualname__, tensors, since)
        return result

    return calling
