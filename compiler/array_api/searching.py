"""Functions that search, sort and count, and of sets."""

from __future__ import annotations

from typing import Literal, NamedTuple, cast

from ugpu.compiler.array_api.elementwise import Operand
from ugpu.compiler.array_api.operands import any_complex, array_of, pair_of, real_of
from ugpu.compiler.complex.tensor import ComplexTensor
from ugpu.compiler.methods.core import is_complex
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument

Axes = int | tuple[int, ...] | None


class UniqueAll(NamedTuple):
    """The result of `unique_all`, see there."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """The result of `unique_counts`, see there."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """The result of `unique_inverse`, see there."""

    values: Tensor
    inverse_indices: Tensor


def argmax(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Return `Tensor.argmax`."""
    return array_of("argmax", x).argmax(axis, keepdims)


def argmin(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Return `Tensor.argmin`."""
    return array_of("argmin", x).argmin(axis, keepdims)


def argsort(
    x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> Tensor:
    """Return `Tensor.argsort`."""
    return array_of("argsort", x).argsort(axis, descending, stable=stable)


def count_nonzero(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return `Tensor.count_nonzero`."""
    return array_of("count_nonzero", x).count_nonzero(axis, keepdims)


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """Return `Tensor.nonzero`, an array of indices for each axis."""
    given = array_of("nonzero", x)
    if not given.ndim:
        raise BadArgument("nonzero: expected at least one axis, got shape []")
    indices: tuple[Tensor, ...] = given.nonzero(as_tuple=True)
    return indices


def searchsorted(
    x1: Tensor, x2: Tensor, /, *, side: Literal["left", "right"] = "left",
    sorter: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return `Tensor.searchsorted`. sorter: indices that sort x1."""
    known = array_of("searchsorted", x1)
    ordered = known if sorter is None else known.take(sorter, 0)
    return ordered.searchsorted(x2, side=side)


def sort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Return the elements of `Tensor.sort`."""
    return array_of("sort", x).sort(axis, descending, stable=stable)[0]


def unique_all(x: Tensor, /) -> UniqueAll:
    """Return the different elements, where each occurs first, the place in them of each element of
    x, and how often each occurs. Waits for the device."""
    flat = array_of("unique_all", x).flatten()
    values, inverse, counts = flat.unique(return_inverse=True, return_counts=True)
    order = inverse.argsort()  # stable: the first of each run occurs first
    indices = order.take(counts.cumsum(0) - counts, 0)
    return UniqueAll(values, indices, inverse.reshape(x.shape), counts)


def unique_counts(x: Tensor, /) -> UniqueCounts:
    """Return the different elements, and how often each occurs. Waits for the device."""
    return UniqueCounts(*array_of("unique_counts", x).unique(return_counts=True))


def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """Return the different elements, and the place in them of each element of x. Waits for the
    device."""
    return UniqueInverse(*array_of("unique_inverse", x).unique(return_inverse=True))


def unique_values(x: Tensor, /) -> Tensor:
    """Return the different elements. Waits for the device."""
    values: Tensor = array_of("unique_values", x).unique()
    return values


def where(condition: Tensor, x1: Operand, x2: Operand, /) -> Tensor:
    """Return `Tensor.where`."""
    chosen = real_of("where", condition)
    if any_complex(x1, x2) is not None or is_complex(x1) or is_complex(x2):
        return cast("Tensor", ComplexTensor.where(chosen, *pair_of("where", x1, x2)))
    return chosen.where(x1, x2)
