"""PyTorch's argument names, such as `dim` and `keepdim` for `axis` and `keepdims`."""

from __future__ import annotations

import functools
import inspect
from types import FunctionType
from typing import Any, cast

from ugpu.hcq.errors import BadArgument

NAMES = {
    "dim": "axis",
    "dims": "axis",
    "keepdim": "keepdims",
    "start_dim": "start",
    "end_dim": "end",
    "dim0": "first",
    "dim1": "second",
    "kernel_size": "size",
    "k": "count",
    "chunks": "count",
    "repeats": "count",
    "num_classes": "classes",
    "min_val": "low",
    "max_val": "high",
    "negative_slope": "slope",
    "pos_weight": "positive_weight",
    "attn_mask": "mask",
    "src": "source",
    "eps": "epsilon",
}


def with_aliases(method: FunctionType) -> FunctionType:
    """Return `method`, made to accept the other names of its arguments as well; `method` itself if
    none of its arguments has another name. The result raises BadArgument if both names of one
    argument are given."""
    known = inspect.signature(method).parameters
    listed = known.get("axes")
    several = listed is not None and listed.kind is not listed.VAR_POSITIONAL
    names = {**NAMES, "dims": "axes"} if several else NAMES
    taken = {alias: name for alias, name in names.items() if name in known and alias not in known}
    if not taken:
        return method
    title = method.__qualname__

    @functools.wraps(method)
    def aliased(*args: Any, **kwargs: Any) -> Any:  # the method's own arguments
        if not kwargs:
            return method(*args)
        for alias in taken.keys() & kwargs.keys():
            name = taken[alias]
            if name in kwargs:
                raise BadArgument(f"{title} got both {name} and {alias}, expected one of them")
            kwargs[name] = kwargs.pop(alias)
        return method(*args, **kwargs)

    return cast(FunctionType, aliased)
