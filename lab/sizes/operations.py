"""The operations of the campaign, and what NumPy says of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from lab.sizes.case import Array, Case, Operation, Shape, integers
from lab.sizes.products import products
from ugpu.compiler import Tensor

FLOATS = ("float32", "float32", "float16")
SIGNED = ("float32", "float16", "int32", "int8", "int64")
BOOLS = ("bool", "float32", "int8")
ROWS = {"rtol": 2e-3, "atol": 2e-3}  # of whole rows, in float16 too

Work = Callable[[Tensor, int], Tensor]
Reference = Callable[[Array, int], Any]


def operations() -> dict[str, Operation]:
    """Return the table."""
    return dict((*_reductions(), *_rows(), *_movement(), *_joins(), *_indices(), *products()))


def along(work: Work, reference: Reference, **options: Any) -> Operation:
    """Return an operation along one axis."""
    return Operation(
        lambda case, x: work(x[0], case.axis),
        lambda case, x: reference(x[0], case.axis),
        **options,
    )


def wide(x: Array) -> Array:
    """Return an array in the widest type of its kind."""
    return x.astype({"f": np.float64, "i": np.int64, "u": np.uint64, "b": np.int64}[x.dtype.kind])


def _ones(case: Case) -> list[Array]:
    """Return numbers of which all products are exact."""
    return [case.random().choice((1, 1, -1), case.sizes).astype(case.dtype)]


def _reductions() -> Iterator[tuple[str, Operation]]:
    yield "sum", along(lambda x, a: x.sum(a), lambda x, a: wide(x).sum(a))
    yield "sum_all", Operation(lambda _, x: x[0].sum(), lambda _, x: wide(x[0]).sum())
    yield (
        "sum_some",
        Operation(
            lambda case, x: x[0].sum(case.order[:2], keepdims=True),
            lambda case, x: wide(x[0]).sum(case.order[:2], keepdims=True),
            (2, 4),
        ),
    )
    yield (
        "prod",
        along(lambda x, a: x.prod(a), lambda x, a: wide(x).prod(a), types=SIGNED, values=_ones),
    )
    yield "max", along(lambda x, a: x.max(a), lambda x, a: x.max(a))
    yield "min", along(lambda x, a: x.min(a), lambda x, a: x.min(a))
    yield "any", along(lambda x, a: (x > 2).any(a), lambda x, a: (x > 2).any(a), types=BOOLS)
    yield "all", along(lambda x, a: (x > -3).all(a), lambda x, a: (x > -3).all(a), types=BOOLS)
    yield "argmax", along(lambda x, a: x.argmax(a), lambda x, a: x.argmax(a))
    yield "argmin", along(lambda x, a: x.argmin(a), lambda x, a: x.argmin(a))
    yield "mean", along(lambda x, a: x.mean(a), lambda x, a: wide(x).mean(a), types=FLOATS, **ROWS)
    yield (
        "var",
        along(
            lambda x, a: x.var(a, correction=0), lambda x, a: wide(x).var(a), types=FLOATS, **ROWS
        ),
    )
    yield "sum_of_squares", along(
        lambda x, a: (x * x).sum(a), lambda x, a: (wide(x) ** 2).sum(a), types=("float32", "int32"),
        rtol=1e-6,  # 2^24 is exceeded
    )  # fmt: skip


def _softmax(x: Array, axis: int) -> Array:
    e = np.exp(wide(x) - wide(x).max(axis, keepdims=True))
    return np.asarray(e / e.sum(axis, keepdims=True))


def _layernorm(x: Array, axis: int) -> Array:
    apart = wide(x) - wide(x).mean(axis, keepdims=True)
    return np.asarray(apart / np.sqrt((apart**2).mean(axis, keepdims=True) + 1e-5))


def _rows() -> Iterator[tuple[str, Operation]]:
    """Yield operations whose result has the size of their input."""
    yield "softmax", along(lambda x, a: x.softmax(a), _softmax, types=FLOATS, **ROWS)
    yield "log_softmax", along(
        lambda x, a: x.log_softmax(a), lambda x, a: np.log(_softmax(x, a)), types=FLOATS,
        rtol=2e-3, atol=2e-2,
    )  # fmt: skip
    yield "layernorm", along(lambda x, a: x.layernorm(a), _layernorm, types=FLOATS, **ROWS)
    yield (
        "cumsum",
        along(
            lambda x, a: x.cumsum(a),
            lambda x, a: wide(x).cumsum(a),
            types=("float32", "int32", "int8"),
        ),
    )
    yield (
        "cumprod",
        along(
            lambda x, a: x.cumprod(a), lambda x, a: wide(x).cumprod(a), types=SIGNED, values=_ones
        ),
    )
    yield "cummax", along(lambda x, a: x.cummax(a), lambda x, a: np.maximum.accumulate(x, a))
    yield "cummin", along(lambda x, a: x.cummin(a), lambda x, a: np.minimum.accumulate(x, a))
    yield (
        "sort",
        along(
            lambda x, a: x.sort(a)[0], lambda x, a: np.sort(x, a, kind="stable"), values=_anything
        ),
    )
    yield (
        "argsort",
        along(
            lambda x, a: x.argsort(a),
            lambda x, a: np.argsort(x, a, kind="stable"),
            values=_anything,
        ),
    )
    yield (
        "topk",
        Operation(
            lambda case, x: x[0].topk(_few(case), case.axis)[0],
            lambda case, x: np.flip(np.sort(x[0], case.axis, kind="stable"), case.axis).take(
                range(_few(case)), case.axis
            ),
            values=_anything,
        ),
    )
    yield (
        "median",
        along(
            lambda x, a: x.median(a)[0],
            lambda x, a: np.sort(x, a, kind="stable").take((x.shape[a] - 1) // 2, a),
        ),
    )


def _few(case: Case) -> int:
    return min(case.sizes[case.axis], 1 + case.seed % 37)


def _anything(case: Case) -> list[Array]:
    """Return numbers from the whole range of a type."""
    kind = np.dtype(case.dtype)
    if kind.kind == "f":
        return [np.asarray(case.random().normal(0, 3, case.sizes)).astype(kind)]
    limits = np.iinfo(kind)
    shape = case.sizes
    return [case.random().integers(limits.min, limits.max, shape, dtype=kind, endpoint=True)]


def _movement() -> Iterator[tuple[str, Operation]]:
    yield (
        "permute",
        Operation(
            lambda case, x: x[0].permute(*case.order).contiguous(),
            lambda case, x: x[0].transpose(case.order),
            (2, 4),
        ),
    )
    yield (
        "reshape",
        Operation(
            lambda case, x: x[0].permute(*case.order).reshape(-1).contiguous(),
            lambda case, x: x[0].transpose(case.order).reshape(-1),
            (2, 4),
        ),
    )
    yield "flip", along(lambda x, a: x.flip(a), lambda x, a: np.flip(x, a))
    yield (
        "roll",
        Operation(
            lambda case, x: x[0].roll(case.seed % 1009, case.axis),
            lambda case, x: np.roll(x[0], case.seed % 1009, case.axis),
        ),
    )
    yield (
        "pad",
        Operation(
            lambda case, x: x[0].pad(_pairs(case)), lambda case, x: np.pad(x[0], _pairs(case))
        ),
    )
    yield (
        "shrink",
        Operation(
            lambda case, x: x[0][_slices(case)].contiguous(), lambda case, x: x[0][_slices(case)]
        ),
    )
    yield (
        "cast",
        Operation(
            lambda case, x: x[0].cast("int16").cast("float16"),
            lambda case, x: x[0].astype("float16"),
        ),
    )
    yield (
        "add_turned",
        Operation(
            lambda case, x: x[0] + x[1].permute(*case.order),
            lambda case, x: x[0] + x[1].transpose(case.order),
            (2, 4),
            shapes=_turned_shapes,
        ),
    )
    yield (
        "where_turned",
        Operation(
            lambda case, x: (x[1].permute(*case.order) > 0).where(x[0], x[1].permute(*case.order)),
            lambda case, x: (
                np.maximum(x[0] * 0, 0)
                + np.where(x[1].transpose(case.order) > 0, x[0], x[1].transpose(case.order))
            ),
            (2, 4),
            shapes=_turned_shapes,
        ),
    )
    yield (
        "broadcast",
        Operation(
            lambda case, x: x[0] * x[1] - x[2],
            lambda case, x: x[0] * x[1] - x[2],
            types=SIGNED,
            shapes=lambda case: [
                case.sizes,
                tuple(1 if axis == case.axis else size for axis, size in enumerate(case.sizes)),
                case.sizes[-1:],
            ],
        ),
    )


def _turned_shapes(case: Case) -> list[Shape]:
    order = case.order
    return [case.sizes, tuple(case.sizes[order.index(axis)] for axis in range(len(order)))]


def _pairs(case: Case) -> list[tuple[int, int]]:
    return [(int(n) % 9, int(n) % 4) for n in case.random().integers(0, 36, len(case.sizes))]


def _slices(case: Case) -> tuple[slice, ...]:
    random = case.random()
    starts = [int(random.integers(0, size)) // 2 for size in case.sizes]
    return tuple(slice(start, None, int(random.integers(1, 4))) for start in starts)


def _joins() -> Iterator[tuple[str, Operation]]:
    yield (
        "cat",
        Operation(
            lambda case, x: Tensor.cat(list(x), case.axis),
            lambda case, x: np.concatenate(x, case.axis),
            shapes=_parts,
        ),
    )
    yield (
        "cat_halves",
        Operation(
            lambda case, x: Tensor.cat([x[0] * 2, x[1].permute(*case.order), x[0]], case.axis),
            lambda case, x: np.concatenate([x[0] * 2, x[1].transpose(case.order), x[0]], case.axis),
            (2, 4),
            shapes=_turned_shapes,
        ),
    )
    yield (
        "stack",
        Operation(
            lambda case, x: Tensor.stack(list(x), case.axis),
            lambda case, x: np.stack(x, case.axis),
            (1, 3),
            shapes=lambda case: [case.sizes] * 3,
        ),
    )


def _parts(case: Case) -> list[Shape]:
    sizes = (case.sizes[case.axis], 1 + case.seed % 5, 1 + case.seed % 301)
    before, behind = case.sizes[: case.axis], case.sizes[case.axis + 1 :]
    return [(*before, size, *behind) for size in sizes]


def _indices() -> Iterator[tuple[str, Operation]]:
    yield (
        "take",
        Operation(
            lambda case, x: x[0].take(x[1], case.axis),
            lambda case, x: x[0].take(x[1], case.axis),
            values=lambda case: [_first(case), _places(case, (case.sizes[case.axis],))],
        ),
    )
    yield (
        "gather",
        Operation(
            lambda case, x: x[0].gather(case.axis, x[1]),
            lambda case, x: np.take_along_axis(x[0], x[1], case.axis),
            values=lambda case: [_first(case), _places(case, case.sizes)],
        ),
    )
    yield (
        "scatter_add",
        Operation(
            lambda case, x: x[0].scatter_add(case.axis, x[1], x[2]),
            _scatter_add,
            types=("float32", "int32"),
            values=lambda case: [_first(case), _places(case, case.sizes), _first(case)],
        ),
    )
    yield "index_copy", Operation(
        lambda case, x: x[0].index_copy(case.axis, x[1], x[2]),
        _index_copy,
        values=lambda case: [
            _first(case), case.random().permutation(case.sizes[case.axis]), _first(case) * 2
        ],
    )  # fmt: skip
    yield (
        "masked_select",
        Operation(lambda case, x: x[0].masked_select(x[0] > 0), lambda case, x: x[0][x[0] > 0]),
    )
    yield (
        "masked_fill",
        Operation(
            lambda case, x: x[0].masked_fill(x[0] > 0, 5),
            lambda case, x: np.where(x[0] > 0, x[0].dtype.type(5), x[0]),
        ),
    )


def _first(case: Case) -> Array:
    return integers(case.random(), case.sizes, case.dtype)


def _places(case: Case, shape: Shape) -> Array:
    return case.random().integers(0, case.sizes[case.axis], shape)


def _at(case: Case, places: Array) -> tuple[Array, ...]:
    grids: list[Array] = list(np.indices(places.shape, sparse=True))
    grids[case.axis] = places
    return tuple(grids)


def _scatter_add(case: Case, x: Sequence[Array]) -> Array:
    result = wide(x[0])
    np.add.at(result, _at(case, x[1]), x[2])
    return result


def _index_copy(case: Case, x: Sequence[Array]) -> Array:
    result = x[0].copy()
    np.moveaxis(result, case.axis, 0)[x[1]] = np.moveaxis(x[2], case.axis, 0)
    return result
