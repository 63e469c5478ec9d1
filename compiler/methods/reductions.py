"""Tensor: reductions, and functions composed of them. axis= and keepdims= as in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Literal, Self, overload

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.dtype import bool_, float32, int32, int64, is_narrow
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node, Repeated
from ugpu.compiler.methods.core import TensorCore, broadcast_shape, is_complex, number_of
from ugpu.compiler.methods.elementwise import Elementwise
from ugpu.compiler.methods.shape.movement import Movement
from ugpu.compiler.schedule import split
from ugpu.compiler.schedule.counted import counted
from ugpu.hcq.errors import BadArgument

Axis = int | Sequence[int] | None


class Reductions(Elementwise, Movement):
    """Reductions. axis: an axis, several, or None for all; reduced axes are removed unless
    keepdims."""

    __slots__ = ()

    def _reduce(self, op: str, node: Node, axes: tuple[int, ...], keepdims: bool) -> Self:
        """Reduce in float32 where the type is narrower, and round once."""
        wide = graph.cast(node, float32) if is_narrow(node.dtype) else node
        target = self.device.target
        total = counted(wide, axes, target) if op == "sum" else None
        if total is None:
            total = split.reduce(op, wide, axes, target.compute_units, target.abi == "host")
        result = graph.cast(total, node.dtype)
        if not keepdims:
            kept = tuple(size for i, size in enumerate(node.shape) if i not in axes)
            result = graph.reshape(result, kept)
        return self._new(result)

    def _remembered(
        self, name: str, method: Callable[[Self, Axis, bool], Self], axis: Axis, keepdims: bool
    ) -> Self:
        """Return the method's result; its recipe is built once for arrays of a type and shape."""
        node = self.node
        plain = axis is None or type(axis) is int
        if not plain and not (type(axis) is tuple and all(type(each) is int for each in axis)):
            return method(self, axis, keepdims)
        whole = bool(keepdims)
        if node.recipes is not None:
            recipe = node.recipes.get((name, axis, whole))
            if recipe is not None:
                recipe.repeats = True
                given = (node,)
                return self._repeated(recipe, given, given, ())
        key = name, axis, whole, self.device.target.abi  # a host's rows may stay whole
        made = self._again(key, (), lambda: method(self, axis, whole))
        last = made.node
        recipe = last.recipe
        own = isinstance(last, Repeated) and last.operands == (node,)  # not of a last step alone
        if recipe is not None and own and node.storage is not None:
            if node.recipes is None:
                node.recipes = {}
            node.recipes[name, axis, whole] = recipe
        return made

    def sum(self, axis: Axis = None, keepdims: bool = False, *, dtype: Any = None) -> Self:
        """Return the sum along the axes. Integers and bools give 64-bit integers. dtype: convert to
        this type first, and return it."""
        if dtype is not None:
            return self.cast(dtype).sum(axis, keepdims).cast(dtype)
        return self._remembered("sum", Reductions._sum, axis, keepdims)

    def _sum(self, axis: Axis, keepdims: bool) -> Self:
        node = graph.cast(self.node, dtypes.sum_dtype(self.dtype))
        return self._reduce("sum", node, self._axes("sum", axis), keepdims)

    def prod(self, axis: Axis = None, keepdims: bool = False, *, dtype: Any = None) -> Self:
        """Return the product along the axes. Integers and bools give 64-bit integers. dtype:
        convert to this type first, and return it."""
        if dtype is not None:
            return self.cast(dtype).prod(axis, keepdims).cast(dtype)
        node = graph.cast(self.node, dtypes.sum_dtype(self.dtype))
        return self._reduce("prod", node, self._axes("prod", axis), keepdims)

    @overload
    def max(self, axis: Elementwise) -> Self: ...

    @overload
    def max(
        self, axis: Axis = None, keepdims: bool = False, *, indices: Literal[False] = False
    ) -> Self: ...

    @overload
    def max(
        self, axis: int, keepdims: bool = False, *, indices: Literal[True]
    ) -> tuple[Self, Self]: ...

    def max(
        self, axis: Axis | Elementwise = None, keepdims: bool = False, *, indices: bool = False
    ) -> Self | tuple[Self, Self]:
        """Return the largest element along the axes; NaN if any is NaN. indices: along one axis,
        return also the place of the first of equals, as int64, as PyTorch's `max(dim)` does. With a
        tensor instead of axes, the same as `maximum`. Raises BadArgument for empty axes."""
        if isinstance(axis, Elementwise):
            return self.maximum(axis)
        if not indices:
            return self._remembered("max", Reductions._max, axis, keepdims)
        return self._extreme_at("max", axis, keepdims)

    def _max(self, axis: Axis, keepdims: bool) -> Self:
        axes = self._some("max", axis)
        return self._reduce("or" if self.dtype is bool_ else "max", self.node, axes, keepdims)

    @overload
    def min(self, axis: Elementwise) -> Self: ...

    @overload
    def min(
        self, axis: Axis = None, keepdims: bool = False, *, indices: Literal[False] = False
    ) -> Self: ...

    @overload
    def min(
        self, axis: int, keepdims: bool = False, *, indices: Literal[True]
    ) -> tuple[Self, Self]: ...

    def min(
        self, axis: Axis | Elementwise = None, keepdims: bool = False, *, indices: bool = False
    ) -> Self | tuple[Self, Self]:
        """Return the smallest element along the axes; NaN if any is NaN. indices: along one axis,
        return also the place of the first of equals, as int64, as PyTorch's `min(dim)` does. With a
        tensor instead of axes, the same as `minimum`. Raises BadArgument for empty axes."""
        if isinstance(axis, Elementwise):
            return self.minimum(axis)
        if not indices:
            return self._remembered("min", Reductions._min, axis, keepdims)
        return self._extreme_at("min", axis, keepdims)

    def _min(self, axis: Axis, keepdims: bool) -> Self:
        axes = self._some("min", axis)
        return self._reduce("and" if self.dtype is bool_ else "min", self.node, axes, keepdims)

    def _extreme_at(self, operation: str, axis: Axis, keepdims: bool) -> tuple[Self, Self]:
        """Return the extreme elements along one axis, and their places."""
        if not isinstance(axis, int):
            raise BadArgument(f"{operation}: expected one axis for indices, got {axis}")
        place = self._position(f"arg{operation}", axis, True)
        if not self.ndim:
            return self._same(), place.reshape(())
        at = self._axis(operation, axis)
        shape = tuple(size if i == at else 1 for i, size in enumerate(self.shape))
        places = self._new(graph.reshape(graph.iota(self.shape[at]), shape))
        chosen = places._compare("eq", place).where(self, 0)
        extreme = chosen.cast(dtypes.sum_dtype(self.dtype)).sum(at, keepdims).cast(self.dtype)
        return extreme, place if keepdims else place.squeeze(at)

    def any(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Return whether any element along the axes is true (not 0)."""
        node = graph.cast(self.node, bool_)
        return self._reduce("or", node, self._axes("any", axis), keepdims)

    def all(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Return whether all elements along the axes are true (not 0)."""
        node = graph.cast(self.node, bool_)
        return self._reduce("and", node, self._axes("all", axis), keepdims)

    def mean(self, axis: Axis = None, keepdims: bool = False, *, dtype: Any = None) -> Self:
        """Return the mean along the axes. Integers give float32; empty axes give NaN. dtype:
        convert to this type first."""
        if dtype is not None:
            return self.cast(dtype).mean(axis, keepdims)
        return self._remembered("mean", Reductions._mean, axis, keepdims)

    def _mean(self, axis: Axis, keepdims: bool) -> Self:
        axes = self._axes("mean", axis)
        count = prod(self.shape[i] for i in axes)
        kind = dtypes.float_dtype(self.dtype)
        total = self._real().sum(axes, keepdims)
        return (total / count).cast(kind)

    def var(
        self, axis: Axis = None, keepdims: bool = False, correction: float | None = None, *,
        unbiased: bool | None = None,
    ) -> Self:  # fmt: skip
        """Return the variance along the axes, with divisor n - correction (None: 1). unbiased:
        whether the correction is 1, otherwise 0."""
        axis, less = correction_of(axis, correction, unbiased)
        axes = self._axes("var", axis)
        count = prod(self.shape[i] for i in axes)
        wide = self._real()
        apart = wide - wide.mean(axes, keepdims=True)
        total = (apart * apart).sum(axes, keepdims)
        return (total / max(0, count - less)).cast(dtypes.float_dtype(self.dtype))

    def std(
        self, axis: Axis = None, keepdims: bool = False, correction: float | None = None, *,
        unbiased: bool | None = None,
    ) -> Self:  # fmt: skip
        """Return the standard deviation along the axes: the root of `var`."""
        spread = self.var(axis, keepdims, correction, unbiased=unbiased)
        return spread.sqrt()._ruled("root", [spread])

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Self:
        """Return the index of the largest element, the first of equals, as int64. NaN counts as
        largest."""
        if type(axis) is not int or self.node.tracked:  # a recipe keeps no rule of gradients
            return self._position("argmax", axis, keepdims)
        key = "argmax", axis, bool(keepdims)
        return self._again(key, (), lambda: self._position("argmax", axis, keepdims))

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Self:
        """Return the index of the smallest element, the first of equals, as int64. NaN counts as
        smallest."""
        if type(axis) is not int or self.node.tracked:  # a recipe keeps no rule of gradients
            return self._position("argmin", axis, keepdims)
        key = "argmin", axis, bool(keepdims)
        return self._again(key, (), lambda: self._position("argmin", axis, keepdims))

    def _position(self, operation: str, axis: int | None, keepdims: bool) -> Self:
        if axis is None or not self.ndim:
            self._axes(operation, axis)
            flat = self.flatten()._position(operation, 0, False)
            return flat.reshape((1,) * self.ndim) if keepdims else flat
        place = self._some(operation, self._axis(operation, axis))[0]
        cut = split.decide(self.shape, (place,))
        if cut is not None and place == self.ndim - 1 and self._few_rows(self.shape[place]):
            shape = (*self.shape[:-1], *[1] * keepdims)
            return self._position_by_pieces(operation, cut[2]).reshape(shape)
        best = self.max(place, True) if operation == "argmax" else self.min(place, True)
        found = self._compare("eq", best)
        if self.dtype.is_float:
            found = found | self.isnan()
        count = self.shape[place]
        counter = int32 if count < 1 << 31 else int64
        shape = tuple(count if i == place else 1 for i in range(self.ndim))
        places = graph.reshape(graph.cast(graph.iota(count), counter), shape)
        first = found.where(self._new(places), count - 1).min(place, keepdims)
        return first.cast(int64)

    def _few_rows(self, length: int) -> bool:
        """Return whether the device is a host that rows of a length leave without work."""
        target = self.device.target
        rows = self.numel() // length
        return target.abi == "host" and not split.keep_busy(rows, target.compute_units)

    def _position_by_pieces(self, operation: str, pieces: int) -> Self:
        """Search each piece of the last axis, and then among the pieces' elements."""
        count = self.shape[-1]
        rows = self._new(graph.reshape(self.node, (self.numel() // count, count)))
        each, lines = count // pieces, rows.shape[0]
        even = each * pieces
        head = graph.shrink(rows.node, [(0, lines), (0, even)])
        parts = self._new(graph.reshape(head, (lines, pieces, each)))
        found = [parts._position(operation, 2, False) + self._numbers_along(pieces, (1, -1)) * each]
        if even < count:
            tail = self._new(graph.shrink(rows.node, [(0, lines), (even, count)]))
            found.append(tail._position(operation, 1, True) + even)
        places = self._new(graph.cat([part.node for part in found], 1)).contiguous()
        row = self._numbers_along(lines, (-1, 1))
        best = rows._elements_at(row, places)
        return places._elements_at(row, best._position(operation, 1, True))

    def _numbers_along(self, count: int, shape: tuple[int, int]) -> Self:
        """Return 0, 1 .. as int64, along a row or a column."""
        wanted = tuple(count if size < 0 else size for size in shape)
        return self._new(graph.reshape(graph.iota(count), wanted))

    def _elements_at(self, row: Self, places: Self) -> Self:
        """Return the elements of each row at its places."""
        nodes = row.expand(places.shape).node, places.node
        return self._new(graph.gather(self.node, (0, 1), nodes, checked=True))

    def _some(self, operation: str, axis: Axis) -> tuple[int, ...]:
        axes = self._axes(operation, axis)
        if any(self.shape[i] == 0 for i in axes):
            raise BadArgument(f"{operation}: axis {axis} of shape {self._shown} is empty")
        return axes

    def softmax(self, axis: int = -1, *, dtype: Any = None) -> Self:
        """Return exp(x) divided by its sum along the axis, without overflow. dtype: convert to this
        type first."""
        if dtype is not None:
            return self.cast(dtype).softmax(axis)
        if type(axis) is not int or self.node.tracked:  # a recipe keeps no rule of gradients
            return self._softmax(axis)
        key = "softmax", axis, self.device.target.abi  # a host's rows may stay whole
        return self._again(key, (), lambda: self._softmax(axis))

    def _softmax(self, axis: int) -> Self:
        dtype = dtypes.float_dtype(self.dtype)
        raised = self._shifted("softmax", axis).exp()
        return (raised / raised.sum(axis, keepdims=True)).cast(dtype)

    def log_softmax(self, axis: int = -1, *, dtype: Any = None) -> Self:
        """Return the logarithm of `softmax`, without overflow. dtype: convert to it first."""
        if dtype is not None:
            return self.cast(dtype).log_softmax(axis)
        kind = dtypes.float_dtype(self.dtype)
        shifted = self._shifted("log_softmax", axis)
        return (shifted - shifted.exp().sum(axis, keepdims=True).log()).cast(kind)

    def _shifted(self, operation: str, axis: int) -> Self:
        self._axes(operation, axis)
        wide = self._real()
        return wide if not self.numel() else wide - wide.detach().max(axis, keepdims=True)

    def matmul(self, other: Any) -> Self:
        """Return the matrix product as in numpy.matmul: 1-D operands are vectors, leading axes
        broadcast. 16-bit floats are accumulated in float32; bools give whether any pair is true."""
        if not isinstance(other, TensorCore) and is_complex(other):
            complex_product: Self = self._with_complex(("matmul", False), other)
            return complex_product
        right = self._lift("matmul", other)
        if not isinstance(right, Reductions):
            raise BadArgument("matmul: operands must have at least one axis")
        return self._again(("matmul",), (right,), lambda: self._matmul(right))

    def _matmul(self, right: Reductions, wide: bool = False) -> Self:
        """wide: the totals in the type in which they were summed."""
        if not self.ndim or not right.ndim:
            raise BadArgument("matmul: operands must have at least one axis")
        left: Reductions = self
        dtype = dtypes.promote(left.dtype, right.dtype)
        inner = dtypes.inner(dtype)
        one, two = left.cast(inner), right.cast(inner)
        if one.ndim == 1:
            one = one.unsqueeze(0)
        if two.ndim == 1:
            two = two.unsqueeze(1)
        if one.shape[-1] != two.shape[-2]:
            raise BadArgument(f"matmul: shapes {self._shown} and {right._shown} do not match")
        batch = broadcast_shape("matmul", one.shape[:-2], two.shape[:-2])
        rows, columns = one.shape[-2], two.shape[-1]
        # [..., rows, 1, depth] * [..., 1, columns, depth], summed over the depth
        products = one.unsqueeze(-2) * two.transpose(-1, -2).unsqueeze(-3)
        total = products._reduce("sum", products.node, (products.ndim - 1,), False)
        kept = [rows] * (left.ndim > 1) + [columns] * (right.ndim > 1)
        node = total.node if wide else graph.cast(total.node, dtype)
        return self._new(graph.reshape(node, (*batch, *kept)))

    def __matmul__(self, other: Any) -> Self:
        return self.matmul(other)

    def __rmatmul__(self, other: Any) -> Self:
        left = self._lift("matmul", other)
        if not isinstance(left, Reductions):
            raise BadArgument("matmul: operands must have at least one axis")
        return self._new(left.matmul(self).node)


def correction_of(
    axis: Axis, correction: float | None, unbiased: bool | None
) -> tuple[Axis, float]:  # fmt: skip
    """Return the axes and the correction of a variance. A bool as axis is PyTorch's var(unbiased).
    BadArgument if both are given."""
    if isinstance(axis, bool):
        axis, unbiased = None, axis
    if unbiased is not None and correction is not None:
        raise BadArgument(
            f"var: expected correction or unbiased, got correction={correction} and "
            f"unbiased={unbiased}"
        )
    if correction is None:
        correction = 1 if unbiased is None else int(unbiased)
    return axis, number_of("var", "correction", correction)
