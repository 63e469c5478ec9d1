"""Rules of methods that move elements: they keep the split axis where each part stays whole."""

from __future__ import annotations

from math import prod
from typing import Any

from ugpu.compiler.dtype import uint8
from ugpu.compiler.graph.node import Shape
from ugpu.compiler.sharding.placing import each_device, gathered, operand, wrapped
from ugpu.compiler.sharding.sharded import Sharded
from ugpu.compiler.tensor import Tensor


def _shape_after(name: str, x: Sharded, shape: Shape, args: Any, options: Any) -> Shape:
    """Return the shape that a method gives a tensor of `shape`; nothing is computed. Raises what
    the method raises."""
    empty = Tensor.zeros(shape, device=x.devices[0], dtype=uint8)
    given = getattr(empty, name)
    made: Tensor = given(*args, **options) if callable(given) else given
    return made.shape


def reshaped(name: str, x: Sharded, *args: Any, **options: Any) -> Any:
    """Reshapes: a new axis takes the split if it starts at the same element and every part is a
    whole number of its steps."""
    shape = _shape_after(name, x, x.shape, args, options)
    if x.axis is None:
        return Sharded([each.reshape(shape) for each in x.parts], None, x.partial)
    step = prod(x.shape[x.axis + 1 :])
    for place in range(len(shape)):
        inner = prod(shape[place + 1 :])
        same = prod(shape[:place]) == prod(x.shape[: x.axis])
        if same and inner and all(size * step % inner == 0 for size in x.sizes):
            return Sharded([
                each.reshape((*shape[:place], size * step // inner, *shape[place + 1 :]))
                for each, size in zip(x.parts, x.sizes, strict=True)
            ], place)  # fmt: skip
    return gathered("reshape", x, shape)


def permuted(name: str, x: Sharded, *args: Any, **options: Any) -> Any:
    """The split axis goes where the method puts it."""
    marked = tuple(2 if place == x.axis else 1 for place in range(x.ndim))
    shape = _shape_after(name, x, marked, args, options)
    if name == "T":
        results: list[Any] = [each.T for each in x.parts]
    else:
        results = each_device(name, x, args, options, len(x.parts))
    return Sharded(results, None if x.axis is None else shape.index(2), x.partial)


def expanded(name: str, x: Sharded, *args: Any, **options: Any) -> Any:
    """Repeated along other axes than the split one."""
    shape = _shape_after(name, x, x.shape, args, options)
    if x.axis is None:
        return Sharded([each.expand(shape) for each in x.parts], None, x.partial)
    place = x.axis + len(shape) - x.ndim
    if shape[place] != x.shape[x.axis]:
        return gathered("expand", x, shape)
    return Sharded([
        each.expand((*shape[:place], size, *shape[place + 1 :]))
        for each, size in zip(x.parts, x.sizes, strict=True)
    ], place)  # fmt: skip


def padded(name: str, x: Sharded, pairs: Any, *args: Any, **options: Any) -> Any:
    """Padded on each device unless along the split axis."""
    x = x.reduced()
    _shape_after(name, x, x.shape, (pairs, *args), options)
    if x.axis is not None and tuple(pairs[x.axis]) != (0, 0):
        return gathered(name, x, pairs, *args, **options)
    return wrapped(each_device(name, x, (pairs, *args), options, len(x.parts)), x.axis)


def indexed(x: Sharded, key: Any) -> Any:
    """x[key]: on each device if the split axis is taken whole; rows of a replicated table at a
    sharded index are looked up where the index is."""
    if isinstance(key, Sharded) and not key.dtype.name.startswith("bool"):
        return _looked_up(x.reduced(), operand("[]", x, key))
    x = x.reduced()
    entries = list(key) if isinstance(key, tuple) else [key]
    basic = all(each is None or each is ... or isinstance(each, int | slice) for each in entries)
    if not basic or isinstance(key, bool):
        return gathered("__getitem__", x, key)
    if x.axis is None:
        return Sharded([each[key] for each in x.parts])
    taken = sum(isinstance(each, int | slice) for each in entries)
    missing = x.ndim - taken
    if ... not in entries:
        entries.append(...)
    at = entries.index(...)
    entries[at : at + 1] = [slice(None)] * max(0, missing)
    axis, place = 0, 0  # of x, and of the result
    for each in entries:
        if axis == x.axis and each is not None:
            if each != slice(None):
                break
            return Sharded([part[tuple(entries)] for part in x.parts], place)
        axis += each is not None
        place += not isinstance(each, int)
    return gathered("__getitem__", x, key)


def _listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else [given]


def _looked_up(table: Sharded, index: Sharded) -> Sharded:
    if table.axis is None:
        results = zip(table.parts, index.parts, strict=True)
        return Sharded([each[place] for each, place in results], index.axis)
    if table.axis == 0:
        return _looked_up(table.replicated(), index)
    whole = index.replicated()
    results = zip(table.parts, whole.parts, strict=True)
    return Sharded([each[place] for each, place in results], table.axis - 1 + index.ndim)


def joined(name: str, x: Sharded, *others: Any, axis: int = 0) -> Any:
    """x.cat(y, z), x.cat([y, z], axis), and stack: on each device unless along the split axis."""
    given = list(others)
    if given and isinstance(given[-1], int):
        axis = given.pop()
    listed = [each for other in given for each in _listed(other)]
    first, every = x, [x.reduced(), *(operand(name, x, each) for each in listed)]
    like = next((each for each in every if each.axis is not None), None)
    place = first.parts[0]._axis(name, axis, int(name == "stack"))
    if like is None or (name == "cat" and like.axis == place):
        every = [each.replicated() for each in every]
        return Sharded(each_device(name, None, [every, axis], {}, len(first.parts)))
    assert like.axis is not None
    every = [each.split_along(like.axis, like.sizes) for each in every]
    moved = like.axis + (name == "stack" and place <= like.axis)
    return Sharded(each_device(name, None, [every, axis], {}, len(first.parts)), moved)
