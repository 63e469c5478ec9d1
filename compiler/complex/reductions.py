"""Complex tensors: sums, products and norms along axes, and products of matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from ugpu.compiler.complex.core import complex_dtype
from ugpu.compiler.complex.shapes import Shapes, alike
from ugpu.compiler.dtype import PART_OF
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument

Axis = int | list[int] | tuple[int, ...] | None


def _converter(dtype: Any) -> Callable[[Tensor], Tensor]:
    part = PART_OF[complex_dtype(dtype)]
    return lambda given: given.cast(part)


class Reductions(Shapes):
    """Reductions and products, as those of Tensor."""

    __slots__ = ()

    sum, mean, nansum = alike("sum"), alike("mean"), alike("nansum")
    cumsum, diff, trace = alike("cumsum"), alike("diff"), alike("trace")

    def prod(self, axis: Axis = None, keepdims: bool = False, *, dtype: Any = None) -> Self:
        """Return the product along axes, by default of all elements."""
        result = self if dtype is None else self._each(_converter(dtype))
        axes = result._axes("prod", axis)
        for place in axes:
            result = result._halved(place)
        return +result if keepdims or not axes else result.squeeze(list(axes))

    def _halved(self, place: int) -> Self:
        """Multiply the halves of an axis, until there is one element; of none it is 1."""
        rest: Self = self
        if not rest.shape[place]:
            zeros = rest.sum(place, keepdims=True)
            rest = self.of(zeros.real + 1, zeros.imag)
        while rest.shape[place] > 1:
            size = rest.shape[place]
            half = size // 2
            both = (rest.narrow(place, 0, half) * rest.narrow(place, half, half)).contiguous()
            odd = [rest.narrow(place, size - 1, 1)] if size % 2 else []
            rest = self.cat([both, *odd], place) if odd else both
        return rest

    def cumprod(self, axis: int = 0, *, dtype: Any = None) -> Self:
        """Return the products of the first elements along an axis."""
        place, distance = self._axis("cumprod", axis), 1
        result: Self = self if dtype is None else self._each(_converter(dtype))
        size = self.shape[place]
        while distance < size:  # by the product that ends `distance` before each
            later = result.narrow(place, distance, size - distance)
            both = later * result.narrow(place, 0, size - distance)
            result = self.cat([result.narrow(place, 0, distance), both], place).contiguous()
            distance *= 2
        return +result

    def var(self, axis: Axis = None, keepdims: bool = False, correction: float = 1) -> Tensor:
        """Return the variance, which is real: the sum of those of both parts."""
        one, two = (part.var(axis, keepdims, correction) for part in self.parts)
        return one + two

    def std(self, axis: Axis = None, keepdims: bool = False, correction: float = 1) -> Tensor:
        """Return the root of `var`."""
        return self.var(axis, keepdims, correction).sqrt()

    def norm(self, p: Any = 2, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Return `Tensor.norm` of the absolute values."""
        return self.abs().norm(p, axis, keepdims)

    def all(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Return whether all elements differ from zero."""
        return self.ne(0).all(axis, keepdims)

    def any(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Return whether an element differs from zero."""
        return self.ne(0).any(axis, keepdims)

    def count_nonzero(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Return how many elements differ from zero."""
        return self.ne(0).count_nonzero(axis, keepdims)

    def nonzero(self, as_tuple: bool = False) -> Any:
        """Return the places of elements that differ from zero, see `Tensor.nonzero`."""
        return self.ne(0).nonzero(as_tuple)

    def argwhere(self) -> Tensor:
        """Return the places of elements that differ from zero, as rows of indices."""
        return self.ne(0).argwhere()

    def dist(self, other: Any, p: float = 2) -> Tensor:
        """Return the norm of the difference."""
        return self.sub(other).norm(p)

    def logical_not(self) -> Tensor:
        """Return whether each element is zero."""
        return self.eq(0)

    # ---- products ------------------------------------------------------------------------------

    def _bilinear(self, name: str, other: Any, *args: Any) -> Self:
        """Return what Tensor's method of two tensors gives, for each pair of parts."""
        right = self._operand(name, other)
        if isinstance(right, Tensor):
            return self._each(lambda part: getattr(part, name)(right, *args))
        if not isinstance(right, Reductions):
            raise BadArgument(f"{name}: operands must have at least one axis")
        a, b = (getattr(part, name) for part in self.parts)
        c, d = right.parts
        return self.of(a(c, *args) - b(d, *args), a(d, *args) + b(c, *args))

    def matmul(self, other: Any) -> Self:
        """Return the matrix product, see `Tensor.matmul`."""
        return self._bilinear("matmul", other)

    dot = mm = mv = bmm = matmul

    def inner(self, other: Any) -> Self:
        """Return the sums of products along the last axes."""
        return self._bilinear("inner", other)

    def kron(self, other: Any) -> Self:
        """Return the Kronecker product."""
        return self._bilinear("kron", other)

    def vdot(self, other: Any) -> Self:
        """Return the sum of conjugates times elements of `other`, of two vectors."""
        return self.conj().matmul(other)

    def __matmul__(self, other: Any) -> Self:
        return self.matmul(other)

    def __rmatmul__(self, other: Any) -> Self:
        return self._lifted("matmul", other).matmul(self)

    def outer(self, other: Any) -> Self:
        """Return the products of all pairs of elements of two vectors."""
        return self._bilinear("outer", other)

    def tensordot(self, other: Any, axes: Any = 2) -> Self:
        """Return the sum of products along pairs of axes, see `Tensor.tensordot`."""
        return self._bilinear("tensordot", other, axes)

    def vecdot(self, other: Any, axis: int = -1) -> Self:
        """Return the sums along an axis of conjugates times elements of `other`."""
        total: Self = (self.conj() * self._lifted("vecdot", other)).sum(axis)
        return total
