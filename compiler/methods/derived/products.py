"""Tensor: products of vectors and matrices, distances, and further arrangements, composed of other
methods. Names and meanings as in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.methods.convolution import Pair, pair
from ugpu.compiler.methods.core import (
    Scalar,
    TensorCore,
    broadcast_shape,
    integer_of,
    integers_of,
)
from ugpu.compiler.methods.groups import Groups
from ugpu.hcq.errors import BadArgument


class Products(Groups):
    """Products, distances and arrangements."""

    __slots__ = ()

    # ---- products ------------------------------------------------------------------------------

    def outer(self, other: Any) -> Self:
        """Return the products of all pairs of elements of two tensors of one axis."""
        right = self._tensor("outer", other)
        if self.ndim != 1 or right.ndim != 1:
            raise BadArgument(
                f"outer: expected tensors of one axis, got shapes {self._shown} and {right._shown}"
            )
        return self.unsqueeze(1) * right.unsqueeze(0)

    def kron(self, other: Any) -> Self:
        """Return the Kronecker product; the shorter shape is filled with ones in front."""
        right = self._tensor("kron", other)
        axes = max(self.ndim, right.ndim)
        one = (1,) * (axes - self.ndim) + tuple(self.shape)
        two = (1,) * (axes - right.ndim) + tuple(right.shape)
        left = self.reshape(tuple(n for size in one for n in (size, 1)))
        blocks = right.reshape(tuple(n for size in two for n in (1, size)))
        joined = tuple(a * b for a, b in zip(one, two, strict=True))
        return (left * blocks).reshape(joined)

    def cross(self, other: Any, axis: int = -1) -> Self:
        """Return the vector product along an axis of three elements; the other axes are broadcast.
        An axis counted from the front needs operands of as many axes."""
        right = self._tensor("cross", other)
        if self.ndim != right.ndim:
            if integer_of("cross", "axis", axis) >= 0:
                raise BadArgument(
                    f"cross: expected as many axes or an axis below 0, got axis {axis}, shapes "
                    f"{self._shown} and {right._shown}"
                )
            axes = max(self.ndim, right.ndim)
            one, two = (
                each.reshape((*[1] * (axes - each.ndim), *each.shape)) for each in (self, right)
            )
            return one.cross(two, axis)
        place = self._axis("cross", axis)
        if self.shape[place] != 3 or right.shape[place] != 3:
            raise BadArgument(
                f"cross: expected 3 elements along axis {axis}, got shapes {self._shown} and "
                f"{right._shown}"
            )
        return self.roll(-1, place) * right.roll(-2, place) - self.roll(-2, place) * right.roll(
            -1, place
        )

    def vecdot(self, other: Any, axis: int = -1) -> Self:
        """Return the sums of products along an axis, in the operands' type."""
        products = self * self._tensor("vecdot", other)
        return products.sum(axis).cast(products.dtype)

    def tensordot(self, other: Any, axes: int | Sequence[Sequence[int]] = 2) -> Self:
        """Return the sum of products over pairs of axes: the last of self with the first of other
        (a number of them), or those listed for each. `dims` is the same. An axis of size 1 matches
        any, as in PyTorch: the other is summed."""
        right = self._tensor("tensordot", other)
        if isinstance(axes, int):
            count = integer_of("tensordot", "axes", axes)
            if not 0 <= count <= min(self.ndim, right.ndim):
                raise BadArgument(
                    f"tensordot: {count} axes of shapes {self._shown} and {right._shown}"
                )
            mine, theirs = list(range(self.ndim - count, self.ndim)), list(range(count))
        else:
            listed = [[each] if isinstance(each, int) else list(each) for each in axes]
            if len(listed) != 2 or len(listed[0]) != len(listed[1]):
                raise BadArgument(f"tensordot: expected two lists of as many axes, got {axes}")
            mine = list(self._axes("tensordot", listed[0]))
            theirs = list(right._axes("tensordot", listed[1]))
        sizes = [(self.shape[a], right.shape[b]) for a, b in zip(mine, theirs, strict=True)]
        if any(one != two for one, two in sizes) and all(one == two or 1 in (one, two)
                                                         for one, two in sizes):  # fmt: skip
            left = [a for a, (one, two) in zip(mine, sizes, strict=True) if two == 1 != one]
            other_axes = [b for b, (one, two) in zip(theirs, sizes, strict=True) if one == 1 != two]
            both = (each.sum(axes, True, dtype=each.dtype) if axes else each
                    for each, axes in ((self, left), (right, other_axes)))  # fmt: skip
            return next(both).tensordot(next(both), [mine, theirs])
        if any(one != two for one, two in sizes):
            raise BadArgument(
                f"tensordot: axes {mine} of shape {self._shown} do not match axes {theirs} of "
                f"shape {right._shown}"
            )
        rest = [axis for axis in range(self.ndim) if axis not in mine]
        other_rest = [axis for axis in range(right.ndim) if axis not in theirs]
        depth = math.prod(self.shape[axis] for axis in mine)
        rows = [self.shape[axis] for axis in rest]
        columns = [right.shape[axis] for axis in other_rest]
        one = self.permute(*rest, *mine).reshape((math.prod(rows), depth))
        two = right.permute(*theirs, *other_rest).reshape((depth, math.prod(columns)))
        return one.matmul(two).reshape((*rows, *columns))

    def bmm(self, other: Any) -> Self:
        """Return the matrix products of two tensors of three axes, one for each of the first."""
        right = self._tensor("bmm", other)
        if self.ndim != 3 or right.ndim != 3 or self.shape[0] != right.shape[0]:
            raise BadArgument(
                f"bmm: expected [n, rows, depth] and [n, depth, columns], got shapes "
                f"{self._shown} and {right._shown}"
            )
        return self.matmul(right)

    def addmm(self, left: Any, right: Any, *, beta: Scalar = 1, alpha: Scalar = 1) -> Self:
        """Return beta * self + alpha * (left @ right). A beta of zero ignores self, NaN too."""
        return self._added("addmm", 2, left, right, beta, alpha)

    def baddbmm(self, left: Any, right: Any, *, beta: Scalar = 1, alpha: Scalar = 1) -> Self:
        """Return beta * self + alpha * left.bmm(right). A beta of zero ignores self, NaN too."""
        return self._added("baddbmm", 3, left, right, beta, alpha)

    def _added(
        self, operation: str, axes: int, left: Any, right: Any, beta: Scalar, alpha: Scalar
    ) -> Self:
        one, two = self._tensor(operation, left), self._tensor(operation, right)
        if one.ndim != axes or two.ndim != axes:
            raise BadArgument(
                f"{operation}: expected {axes} axes, got shapes {one._shown} and {two._shown}"
            )
        return self._plus(one.matmul(two), beta, alpha)

    def _plus(self, product: Self, beta: Scalar, alpha: Scalar) -> Self:
        product = product if alpha == 1 else product * alpha
        if beta == 0:
            return product.expand(broadcast_shape("addmm", self.node, product.node))
        return product + (self if beta == 1 else self * beta)

    def addmv(self, left: Any, right: Any, *, beta: Scalar = 1, alpha: Scalar = 1) -> Self:
        """Return beta * self + alpha * (left @ right) of a matrix and a vector."""
        column = self._tensor("addmv", right)
        if column.ndim != 1:
            raise BadArgument(f"addmv: expected a vector, got shape {column._shown}")
        product = self._tensor("addmv", left).matmul(column)
        return self._plus(product, beta, alpha)

    def addr(self, left: Any, right: Any, *, beta: Scalar = 1, alpha: Scalar = 1) -> Self:
        """Return beta * self + alpha * left.outer(right)."""
        return self._plus(self._tensor("addr", left).outer(right), beta, alpha)

    def addbmm(self, left: Any, right: Any, *, beta: Scalar = 1, alpha: Scalar = 1) -> Self:
        """Return beta * self + alpha * the sum of the matrix products left.bmm(right)."""
        product = self._tensor("addbmm", left).bmm(right)
        return self._plus(product.sum(0, dtype=product.dtype), beta, alpha)

    def mm(self, other: Any) -> Self:
        """Return the product of two matrices."""
        return self._product_of("mm", other, 2, 2)

    def mv(self, other: Any) -> Self:
        """Return the product of a matrix and a vector."""
        return self._product_of("mv", other, 2, 1)

    def vdot(self, other: Any) -> Self:
        """Return the sum of products of two vectors."""
        return self._product_of("vdot", other, 1, 1)

    def _product_of(self, operation: str, other: Any, axes: int, others: int) -> Self:
        right = self._tensor(operation, other)
        if self.ndim != axes or right.ndim != others:
            raise BadArgument(
                f"{operation}: expected {axes} and {others} axes, got shapes {self._shown} and "
                f"{right._shown}"
            )
        return self.matmul(right)

    ger = outer

    def inner(self, other: Any) -> Self:
        """Return the sums of products over the last axes of both; a number multiplies."""
        right = self._tensor("inner", other)
        if not self.ndim or not right.ndim:
            return self * right
        return self.tensordot(right, [[-1], [-1]])

    def trace(self, offset: int = 0) -> Self:
        """Return the sum of a diagonal of a matrix. offset: its distance above the main one."""
        if self.ndim != 2:
            raise BadArgument(f"trace: expected a matrix, got shape {self._shown}")
        return self.diagonal(offset).sum()

    def cdist(self, other: Any, p: float = 2.0, compute_mode: str | None = None) -> Self:
        """Return the distances between the rows of two tensors [..., rows, columns]: the p-norm of
        their difference. compute_mode: has no effect: differences are always computed."""
        right = self._tensor("cdist", other)
        if self.ndim < 2 or right.ndim < 2 or self.shape[-1] != right.shape[-1]:
            raise BadArgument(
                f"cdist: expected rows of one length, got shapes {self._shown} and {right._shown}"
            )
        apart = self._real().unsqueeze(-2) - right._real().unsqueeze(-3)
        kind = self._float_common("cdist", right)
        if not apart.shape[-1]:
            return apart.sum(-1).cast(kind)
        sizes = apart.abs()
        if p == 2:
            squares = apart.square().sum(-1)
            return squares.sqrt()._ruled("root", [squares]).cast(kind)
        if p == math.inf:
            return sizes.max(-1).cast(kind)
        if p == 1:
            return sizes.sum(-1).cast(kind)
        if p == 0:
            return apart._compare("ne", 0).sum(-1).cast(kind)
        if not p > 0:
            raise BadArgument(f"cdist: expected p >= 0, got {p}")
        return sizes.pow(float(p)).sum(-1).pow(1 / float(p)).cast(kind)

    # ---- arrangements --------------------------------------------------------------------------

    def movedim(self, source: int | Sequence[int], destination: int | Sequence[int]) -> Self:
        """Move axes to other places; the others keep their order."""
        one = list(self._axes("movedim", source))
        two = list(self._axes("movedim", destination))
        if len(one) != len(two):
            raise BadArgument(
                f"movedim: expected as many axes in both, got {source} and {destination}"
            )
        rest = iter(axis for axis in range(self.ndim) if axis not in one)
        at = dict(zip(two, one, strict=True))
        order = [at[place] if place in at else next(rest) for place in range(self.ndim)]
        return self.permute(*order) if self.ndim else self._same()

    moveaxis = movedim

    def rot90(self, times: int = 1, axes: Sequence[int] = (0, 1)) -> Self:
        """Rotate by 90 degrees, `times` times, from the first towards the second of two axes."""
        if len(axes) != 2:
            raise BadArgument(f"rot90: expected two axes, got {axes}")
        first, second = self._axes("rot90", list(axes))
        turns = integer_of("rot90", "times", times) % 4
        if turns == 2:
            return self.flip((first, second))
        if not turns:
            return self._same()
        return (
            self.flip(second).transpose(first, second)
            if turns == 1
            else self.transpose(first, second).flip(second)
        )

    def index_select(self, axis: int, index: TensorCore) -> Self:
        """Return the parts at the indices along an axis; the index has one axis."""
        chosen = self._tensor("index_select", index)
        if not chosen.dtype.is_integer or chosen.ndim > 1:
            raise BadArgument(
                "index_select: the index must be a tensor of integers with one axis, got "
                f"{chosen.dtype.name} {chosen._shown}"
            )
        if not self.ndim:
            self._axes("index_select", axis)
            return self.reshape(1)[chosen.reshape(1)].reshape(())
        place = self._axis("index_select", axis)
        return self[(*[slice(None)] * place, chosen.reshape(chosen.numel()))]

    def take_along_dim(self, index: TensorCore, axis: int | None = None) -> Self:
        """Return the elements at an index of as many axes, along an axis (None: of the flattened
        tensor); the other axes are broadcast."""
        chosen = self._tensor("take_along_dim", index)
        if axis is None:
            return self.reshape(self.numel()).gather(0, chosen.reshape(chosen.numel()))
        place = self._axis("take_along_dim", axis)
        if chosen.ndim != self.ndim:
            raise BadArgument(
                f"take_along_dim: expected an index of {self.ndim} axes, got shape {chosen._shown}"
            )
        sizes = [
            (a, b) if axis == place else (max(a, b),) * 2
            for axis, (a, b) in enumerate(zip(self.shape, chosen.shape, strict=True))
        ]
        values = self.expand(tuple(a for a, _ in sizes))
        return values.gather(place, chosen.expand(tuple(b for _, b in sizes)))

    def unfold(self, axis: int, size: int, step: int) -> Self:
        """Return the windows of `size` elements along an axis, `step` apart, as a new last axis."""
        length, apart = integers_of("unfold", "size and step", [size, step])
        if not self.ndim:
            self._axes("unfold", axis)
            if length > 1:
                raise BadArgument(f"unfold: size {length} exceeds the one element of a scalar")
            return self.reshape(1)[:length]
        place = self._axis("unfold", axis)
        have = self.shape[place]
        if not 0 <= length <= have or apart <= 0:
            raise BadArgument(
                f"unfold: expected 0 <= size <= {have} and step > 0, got size {size}, step {step}"
            )
        count = (have - length) // apart + 1
        starts = self._counted(count, 0).reshape((count, 1)) * apart
        places = starts + self._counted(length, 0).reshape((1, length))
        windows = self[(*[slice(None)] * place, places)]
        return windows.movedim(place + 1, -1)

    def im2col(self, size: Pair, dilation: Pair = 1, padding: Pair = 0, stride: Pair = 1) -> Self:
        """Return the windows of images [batch, channels, height, width] as columns, [batch,
        channels * window, places]; `torch.nn.functional.unfold`. Of one image, without a batch."""
        if self.ndim == 3:
            return self.unsqueeze(0).im2col(size, dilation, padding, stride).squeeze(0)
        if self.ndim != 4:
            raise BadArgument(f"im2col: expected 4 axes, got shape {self._shown}")
        window, steps = pair("im2col", size, 1), pair("im2col", stride, 1)
        gaps, around = pair("im2col", dilation, 1), pair("im2col", padding, 0)
        node = self._windows("im2col", window, steps, around, gaps, 0)
        found = self._new(node)
        batch, channels, rows, columns = found.shape[:4]
        ordered = found.permute(0, 1, 4, 5, 2, 3)
        return ordered.reshape((batch, channels * window[0] * window[1], rows * columns))

    def fold(
        self,
        output_size: Pair,
        size: Pair,
        dilation: Pair = 1,
        padding: Pair = 0,
        stride: Pair = 1,
    ) -> Self:
        """Sum columns [batch, channels * window, places] at their places in images of
        `output_size`: the counterpart of `im2col`. Of one image, without a batch."""
        if self.ndim == 2:
            one = self.unsqueeze(0).fold(output_size, size, dilation, padding, stride)
            return one.squeeze(0)
        out, window = pair("fold", output_size, 1), pair("fold", size, 1)
        steps, gaps = pair("fold", stride, 1), pair("fold", dilation, 1)
        around = pair("fold", padding, 0)
        counts = [
            (have + 2 * pad - gap * (length - 1) - 1) // step + 1
            for have, pad, gap, length, step in zip(out, around, gaps, window, steps, strict=True)
        ]
        taps = window[0] * window[1]
        if self.ndim != 3 or self.shape[1] % taps or self.shape[2] != counts[0] * counts[1]:
            raise BadArgument(
                f"fold: expected [batch, channels * {taps}, {counts[0] * counts[1]}] for images of "
                f"{list(out)}, got shape {self._shown}"
            )
        batch, channels = self.shape[0], self.shape[1] // taps
        spread = self.cast(dtypes.sum_dtype(self.dtype)).reshape(
            (batch * channels, *window, *counts)
        )
        placed = spread._placed(out, steps, around, gaps)
        return placed.reshape((batch, channels, *out)).cast(self.dtype)
