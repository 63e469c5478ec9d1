"""Collectives: operations on one tensor per device, whose results lie on the same devices.

Large tensors travel in a ring, one chunk for each device, so that a device sends and receives
2 (n - 1) / n of a tensor in an all-reduce; small ones are collected on the first device. Results
are the same bits on every device. Copies between devices (`Tensor.to`) have a gradient, and so has
every collective.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument

Combine = Callable[[Tensor, Tensor], Tensor]
COMBINE: dict[str, Combine] = {
    "sum": lambda one, two: one + two,
    "prod": lambda one, two: one * two,
    "max": lambda one, two: one.maximum(two),
    "min": lambda one, two: one.minimum(two),
}
SMALL = 4096  # elements: up to here one device collects a sum, which takes fewer copies


def sizes_of(count: int, parts: int) -> list[int]:
    """Return the sizes of equal parts of `count` elements; the last ones are shorter, or empty."""
    step = -(-count // parts)
    return [max(0, min(step, count - place * step)) for place in range(parts)]


def along(tensor: Tensor, axis: int, start: int, stop: int) -> Tensor:
    """Return a range of a tensor along an axis."""
    if (start, stop) == (0, tensor.shape[axis]):
        return tensor
    return tensor[(slice(None),) * axis + (slice(start, stop),)]


def cut(tensor: Tensor, axis: int, sizes: Sequence[int]) -> list[Tensor]:
    """Return consecutive ranges of a tensor along an axis."""
    ends = list(accumulate(sizes))
    return [along(tensor, axis, end - size, end) for end, size in zip(ends, sizes, strict=True)]


def broadcast(tensor: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return a tensor on the device of each of `like`."""
    tensor.realize()
    return [tensor.to(each.device) for each in like]


def all_reduce(parts: Sequence[Tensor], op: str = "sum") -> list[Tensor]:
    """Return the "sum", "prod", "max", "min" or "mean" of tensors of one shape, on each device."""
    if op == "mean":
        return [each / len(parts) for each in all_reduce(parts, "sum")]
    combine = _combine(op, parts)
    first = parts[0]
    if len(parts) == 1:
        return list(parts)
    if first.numel() <= SMALL:
        total = first
        for each in parts[1:]:
            total = combine(total, each.to(first.device))
        return broadcast(total, parts)
    pieces = reduce_scatter([each.reshape(-1) for each in parts], 0, op)
    return [each.reshape(first.shape) for each in all_gather(pieces, 0)]


def reduce_scatter(
    parts: Sequence[Tensor], axis: int, op: str = "sum", sizes: Sequence[int] | None = None
) -> list[Tensor]:
    """Return on each device its range along an axis of the reduction of tensors of one shape.

    The range of device k starts on device k + 1 and is combined on each device on its way."""
    combine, count = _combine(op, parts), len(parts)
    cuts = _realized(parts, [
        cut(each, axis, sizes or sizes_of(each.shape[axis], count)) for each in parts
    ])  # fmt: skip
    results = []
    for owner in range(count):
        total = cuts[(owner + 1) % count][owner]
        for step in range(2, count + 1):
            place = (owner + step) % count
            total = combine(cuts[place][owner], total.to(parts[place].device))
        results.append(total)
    return results


def all_gather(parts: Sequence[Tensor], axis: int) -> list[Tensor]:
    """Return on each device all tensors joined along an axis. Each passes from device to device."""
    count = len(parts)
    _realized(parts)
    rows: list[dict[int, Tensor]] = [{place: each} for place, each in enumerate(parts)]
    for owner, each in enumerate(parts):
        travelling = each
        for step in range(1, count):
            place = (owner + step) % count
            travelling = travelling.to(parts[place].device)
            rows[place][owner] = travelling
    return [Tensor.cat([row[owner] for owner in range(count)], axis) for row in rows]


def all_to_all(
    parts: Sequence[Tensor], split: int, join: int, sizes: Sequence[int] | None = None
) -> list[Tensor]:
    """Return on each device its range along the axis `split` of all tensors, joined along `join`:
    a tensor split along `join` is split along `split` afterwards."""
    count = len(parts)
    cuts = _realized(parts, [
        cut(each, split, sizes or sizes_of(each.shape[split], count)) for each in parts
    ])  # fmt: skip
    return [
        Tensor.cat([row[owner].to(parts[owner].device) for row in cuts], join)
        for owner in range(count)
    ]


def _realized(
    parts: Sequence[Tensor], cuts: list[list[Tensor]] | None = None
) -> list[list[Tensor]]:
    """Compute all tensors, so that their pieces are read and not computed one by one."""
    for each in parts:
        each.realize()
    return cuts or []


def _combine(op: str, parts: Sequence[Tensor]) -> Combine:
    combine = COMBINE.get(op)
    if combine is None:
        raise BadArgument(f"reduction must be one of {sorted([*COMBINE, 'mean'])}, got {op!r}")
    shapes = {each.shape for each in parts}
    if len(shapes) != 1:
        raise BadArgument(f"expected tensors of one shape, got {[list(each) for each in shapes]}")
    return combine
