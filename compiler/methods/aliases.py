"""PyTorch's argument names, such as `dim` and `keepdim` for `axis` and `keepdims`."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from inspect import Parameter
from types import FunctionType
from typing import Any, cast

from ugpu.compiler.methods.derived.arguments import accepted
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

# Names that stand for different arguments of different methods: the first that a method has.
SEVERAL = {
    "mat": ("left",), "mat1": ("left",), "mat2": ("right", "other"), "vec": ("right", "other"),
    "vec1": ("left",), "vec2": ("right", "other"), "batch1": ("left",), "batch2": ("right",),
    "num_samples": ("count",), "dimension": ("axis",), "test_elements": ("elements",),
    "scale_factor": ("scale",), "exponent": ("other",), "indices_or_sections": ("sections",),
    "ddof": ("correction",), "end": ("stop",), "stop": ("end",), "num": ("steps",),
    "axis1": ("dim1",), "axis2": ("dim2",),
}  # fmt: skip


def with_aliases(method: FunctionType) -> FunctionType:
    """Return `method`, made to accept the other names of its arguments as well. The result raises
    BadArgument if both names of one argument are given, and a TypeError that names what to write
    instead of arguments that it has not."""
    known = inspect.signature(method).parameters
    listed = known.get("axes")
    several = listed is not None and listed.kind is not listed.VAR_POSITIONAL
    names = {**NAMES, "dims": "axes"} if several else NAMES
    if several and "axis" not in known:
        names = {**names, "dim": "axes"}
    taken = {alias: name for alias, name in names.items() if name in known and alias not in known}
    for alias, candidates in SEVERAL.items():
        own = [name for name in candidates if name in known]
        if own and alias not in known:
            taken[alias] = own[0]
    kinds = Counter(each.kind for each in known.values())
    places = kinds[Parameter.POSITIONAL_ONLY] + kinds[Parameter.POSITIONAL_OR_KEYWORD]
    most = 1 << 30 if kinds[Parameter.VAR_POSITIONAL] else places
    closed = not kinds[Parameter.VAR_KEYWORD]

    @functools.wraps(method)
    def aliased(*args: Any, **kwargs: Any) -> Any:  # the method's own arguments
        if not kwargs and len(args) <= most:
            return method(*args)
        title = method.__qualname__
        for alias in taken.keys() & kwargs.keys():
            name = taken[alias]
            if name in kwargs:
                raise BadArgument(f"{title} got both {name} and {alias}, expected one of them")
            kwargs[name] = kwargs.pop(alias)
        if len(args) > most or (closed and kwargs.keys() - known.keys()):
            kwargs = accepted(method, len(args) - most, kwargs)
        return method(*args, **kwargs)

    return cast(FunctionType, aliased)


def aliased_module(names: dict[str, Any], module: str) -> None:
    """Let the public functions of a module accept the other names of their arguments."""
    for name, member in list(names.items()):
        own = isinstance(member, FunctionType) and member.__module__ == module
        if own and not name.startswith("_"):
            names[name] = with_aliases(member)
