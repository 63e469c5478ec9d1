"""`function`: a decorator for code that runs many times in a program, such as a network's
layers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ugpu.compiler.front.forms import tensors_of
from ugpu.compiler.front.outline import outline
from ugpu.compiler.graph.node import new_period
from ugpu.hcq.errors import NotSupported

Given = ParamSpec("Given")
Result = TypeVar("Result")


def function(wrapped: Callable[Given, Result]) -> Callable[Given, Result]:
    """Plan the calls of a function (or method) of tensors once.

    Results are the same as without the decorator: the function runs in every call, with any
    arguments, and may use other tensors, store some, and assign. Its kernels do not extend beyond
    it: arguments and results are stored in memory. Calls that compute the same from different
    tensors (a network's layers) share one schedule, one set of kernels and temporary memory.
    Different shapes, types or plain values create a new schedule. Results may be in lists, tuples
    and dicts. When one of its results is requested, a call computes all that are still referenced.
    A call whose results have gradients is planned with everything else, as without the decorator:
    the backward pass needs its inner values, which would be computed twice otherwise.
    Raises NotSupported for results on several devices.
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
        if not any(tensor.node.tracked for tensor in tensors_of(result)):
            outline(calling.__qualname__, tensors, since)
        return result

    return calling
