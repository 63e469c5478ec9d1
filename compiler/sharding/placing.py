"""What the rules of sharded operations share: operands on the same devices, and results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from ugpu.compiler.methods.core import TensorCore
from ugpu.compiler.runtime.generator import Same
from ugpu.compiler.sharding import collectives
from ugpu.compiler.sharding.sharded import Sharded, named
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument

RANDOM = ("bernoulli", "multinomial")  # the same numbers are drawn on each device


def operand(operation: str, like: Sharded, given: Any) -> Any:
    """Return an operand as one of a method of `like`: arrays become replicated tensors. Raises
    BadArgument for a tensor on one device, or on other devices."""
    if isinstance(given, Sharded):
        like._check_devices(operation, given)
        return given.reduced()
    if isinstance(given, TensorCore):
        raise BadArgument(
            f"{operation}: a tensor on {given.device.name} and one sharded on "
            f"{named(like.devices)}; place it with .shard(devices) first"
        )
    if isinstance(given, np.ndarray):
        return Sharded([Tensor(given, device=each) for each in like.devices])
    if isinstance(given, list | tuple):
        return type(given)(operand(operation, like, each) for each in given)
    return given


def part_of(given: Any, place: int) -> Any:
    """Return an argument as device number `place` needs it."""
    if isinstance(given, Sharded):
        return given.parts[place]
    if isinstance(given, list | tuple):
        return type(given)(part_of(each, place) for each in given)
    return given


def each_device(
    name: str, x: Any, args: Sequence[Any], options: Mapping[str, Any], count: int
) -> list[Any]:
    """Return the results of a method on each device. x: the tensor, or a class or static method's
    arguments are in args alone and x is None."""
    results = []
    with Same() if name in RANDOM else contextlib.nullcontext() as same:
        for place in range(count):
            if same is not None:
                same.again()
            given = [part_of(each, place) for each in args]
            named_ = {key: part_of(value, place) for key, value in options.items()}
            target = Tensor if x is None else part_of(x, place)
            results.append(getattr(target, name)(*given, **named_))
    return results


def wrapped(results: Sequence[Any], axis: int | Callable[[Tensor], int] | None) -> Any:
    """Return results of each device as Sharded, also inside tuples; what is not a tensor is the
    same on each."""
    first = results[0]
    if isinstance(first, Tensor):
        return Sharded(results, axis(first) if callable(axis) else axis)
    if isinstance(first, tuple):
        members = [wrapped(each, axis) for each in zip(*results, strict=True)]
        return tuple(members)
    return first


def gathered(name: str, x: Sharded, *args: Any, **options: Any) -> Any:
    """Run a method on all elements, on each device: the rule of what has no other."""
    every = [_whole(operand(name, x, each)) for each in args]
    more = {key: _whole(operand(name, x, value)) for key, value in options.items()}
    return wrapped(each_device(name, x.replicated(), every, more, len(x.parts)), None)


def _whole(given: Any) -> Any:
    if isinstance(given, Sharded):
        return given.replicated()
    if isinstance(given, list | tuple):
        return type(given)(_whole(each) for each in given)
    return given


def aligned(given: Sharded, axis: int, rank: int, sizes: Sequence[int]) -> Sharded:
    """Return an operand for a result of `rank` axes that is split along `axis`: split the same way,
    or as it is if it broadcasts along that axis."""
    own = axis - (rank - given.ndim)
    if own < 0 or (given.shape[own] == 1 and sum(sizes) != 1):
        return given.replicated()
    return given.split_along(own, sizes)


def split_of(operands: Sequence[Any], rank: int) -> tuple[int, list[int]] | None:
    """Return the axis and sizes by which the first operand that is split splits a result of `rank`
    axes; None if none is, or only along an axis that is repeated."""
    for each in operands:
        if isinstance(each, Sharded) and each.axis is not None:
            place = each.axis + rank - each.ndim
            longest = max(_length(other, place, rank) for other in operands)
            if longest == each.shape[each.axis]:
                return place, each.sizes
    return None


def _length(given: Any, place: int, rank: int) -> int:
    own = place - (rank - given.ndim) if isinstance(given, Sharded) else -1
    return given.shape[own] if own >= 0 else 1


def ranges(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return start and end of consecutive ranges."""
    return [(end - size, end) for end, size in zip(accumulate(sizes), sizes, strict=True)]


def beside(
    value: Any, name: str, *args: Any, along: tuple[int, int] | None = None, **options: Any
) -> Any:
    """Return what a class method of Tensor makes, on the device of a tensor, or the devices of a
    sharded one: replicated, or for along=(a, b) split along b if the value is along a."""
    if not isinstance(value, Sharded):
        return getattr(Tensor, name)(*args, device=value.device, **options)
    if along is None or value.axis != along[0]:
        return made(name, value.devices, None, args, options)
    return made(name, value.devices, along[1], args, options, value.sizes)


def made(
    name: str, devices: Sequence[Any], axis: int | None, args: Sequence[Any],
    options: Mapping[str, Any], sizes: Sequence[int] | None = None,
) -> Sharded:  # fmt: skip
    """Return what a class method of Tensor makes (zeros, arange, rand ...), each part on its
    device: the same elements as on one, of which a device computes its own range only."""
    parts = []
    with Same() as same:
        for device in devices:
            same.again()
            parts.append(getattr(Tensor, name)(*args, device=device, **options))
    if axis is None:
        return Sharded(parts)
    place = parts[0]._axis(name, axis)
    wanted = sizes or collectives.sizes_of(parts[0].shape[place], len(parts))
    return Sharded(parts).split_along(place, wanted)
