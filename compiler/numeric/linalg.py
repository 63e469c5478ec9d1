"""Linear algebra, `ugpu.linalg`; names and results as in `torch.linalg`, computed in float32;
of float64 in float64.

Every function works on matrices [..., rows, columns] and runs on the device. An elimination or
factorisation takes as many steps as the matrix has columns. The number of the step is data, so that
all steps run the same kernels. A singular matrix gives infinities or NaN, not an error: to find out
would have to wait for the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.complex.tensor import ComplexTensor
from ugpu.compiler.dtype import DType
from ugpu.compiler.gradients.table import rule
from ugpu.compiler.methods.aliases import aliased_module
from ugpu.compiler.methods.reductions import Axis
from ugpu.compiler.numeric.elimination import det as det
from ugpu.compiler.numeric.elimination import inv as inv
from ugpu.compiler.numeric.elimination import slogdet as slogdet
from ugpu.compiler.numeric.elimination import solve as solve
from ugpu.compiler.numeric.factorisation import cholesky as cholesky
from ugpu.compiler.numeric.factorisation import eigh as eigh
from ugpu.compiler.numeric.factorisation import qr as qr
from ugpu.compiler.numeric.factorisation import svd as svd
from ugpu.compiler.numeric.pairs import complex_matrix, complex_of, left_half, whole
from ugpu.compiler.numeric.steps import matrix_of, nothing, ruled, square_of
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument

Tolerance = float | Tensor | None


def eigvalsh(a: Tensor, UPLO: Literal["L", "U"] = "L") -> Tensor:
    """Return the eigenvalues of `eigh`; of Hermitian matrices too."""
    pair = complex_of(a)
    if pair is not None:
        return eigh(whole(_triangle(pair, UPLO)))[0][..., ::2]
    return eigh(a, UPLO)[0]


def svdvals(a: Tensor) -> Tensor:
    """Return the singular values of `svd`; of complex matrices too."""
    pair = complex_of(a)
    if pair is not None:
        return svd(whole(pair))[1][..., ::2]
    return svd(a)[1]


def _triangle(a: ComplexTensor, UPLO: str) -> ComplexTensor:
    """Return the Hermitian matrices of which one triangle is given."""
    square_of("eigh", a.real)
    strict: ComplexTensor = a.triu(1) if UPLO == "U" else a.tril(-1)
    return strict + strict.mH + a.real.tril().triu()


def _counted(values: Tensor, shape: Sequence[int], atol: Tolerance, rtol: Tolerance) -> Tensor:
    """Return which singular values of matrices of a shape count, see `pinv`."""
    if not values.shape[-1]:
        return values > 0
    share: Tolerance = rtol
    if rtol is None:
        share = max(shape[-2:]) * _precision(values)
        if isinstance(atol, Tensor):
            share = (atol > 0).where(0.0, share)
        elif atol:
            share = 0.0
    least = 0.0 if atol is None else atol
    limit = values.max(-1, keepdims=True)
    limit = limit * (share.unsqueeze(-1) if isinstance(share, Tensor) else share)
    return values > limit.maximum(least.unsqueeze(-1) if isinstance(least, Tensor) else least)


def _precision(values: Tensor) -> float:
    return 2.0**-52 if values.dtype is dtypes.float64 else 2.0**-23


def matrix_rank(
    a: Tensor, rtol: Tolerance = None, hermitian: bool = False, *, atol: Tolerance = None
) -> Tensor:
    """Return the number of singular values that count, see `pinv`, as int64."""
    matrix = a if complex_of(a) is not None else matrix_of("matrix_rank", a)
    values = eigvalsh(matrix).abs() if hermitian else svdvals(matrix)
    return _counted(values, matrix.shape, atol, rtol).sum(-1)


def matrix_norm(
    a: Tensor, ord: float | str = "fro", axis: Axis = (-2, -1), keepdims: bool = False, *,
    dtype: DType | str | None = None,
) -> Tensor:  # fmt: skip
    """Return a norm of matrices, which lie on two axes: "fro", the root of the sum of squares;
    "nuc", the sum of the singular values; 2 and -2, the largest and smallest of them; 1 and -1, the
    largest and smallest sum of magnitudes of a column; infinity and minus infinity, of a row.
    dtype: convert to this type first, and return it."""
    given = matrix_of("matrix_norm", a if dtype is None else a.cast(dtype))
    axes = given._axes("matrix_norm", axis)
    if len(axes) != 2:
        raise BadArgument(f"matrix_norm: expected two axes, got {axis!r}")
    matrix = given.permute(*[each for each in range(a.ndim) if each not in axes], *axes)
    if ord == "fro":
        result = matrix.norm(2, (-2, -1))
    elif ord == "nuc":
        result = svdvals(matrix).sum(-1)
    elif ord in (2, -2):
        values = svdvals(matrix)
        result = values.max(-1) if ord == 2 else values.min(-1)
    elif ord in (1, -1, math.inf, -math.inf):
        sums = matrix.abs().sum(-2 if ord in (1, -1) else -1)
        result = sums.max(-1) if float(ord) > 0 else sums.min(-1)
    else:
        raise BadArgument(
            f"matrix_norm: ord must be 'fro', 'nuc', 1, 2, inf, -1, -2 or -inf, got {ord!r}"
        )
    result = result.cast(dtypes.float_dtype(a.dtype if dtype is None else given.dtype))
    for each in sorted(axes) if keepdims else ():
        result = result.unsqueeze(each)
    return result


def pinv(
    a: Tensor, rtol: Tolerance = None, hermitian: bool = False, *, atol: Tolerance = None
) -> Tensor:
    """Return the pseudo-inverse. Singular values up to rtol times the largest, or up to atol, count
    as zero (default for rtol: the larger side times the type's precision, or 0 with an atol); both
    are numbers, or one for each matrix. hermitian: compute them from `eigh`'s values. The matrices
    may be complex."""
    pair = complex_of(a)
    if pair is not None:
        if rtol is None and atol is None:  # of a matrix of this size, not of twice the size
            rtol = max(a.shape[-2:]) * _precision(pair.real)
        return complex_matrix(left_half(pinv(whole(pair), rtol, hermitian, atol=atol)))
    matrix = matrix_of("pinv", a)

    def compute() -> list[Tensor]:
        if hermitian:
            signed, left = eigh(matrix)
            values, right = signed.abs(), left.transpose(-1, -2)
        else:
            left, values, right = svd(matrix)
            signed = values
        kept = _counted(values, matrix.shape, atol, rtol)
        inverse = kept.where(1.0 / kept.where(signed, 1.0), 0.0)
        return [(right.transpose(-1, -2) * inverse.unsqueeze(-2)) @ left.transpose(-1, -2)]

    return ruled(compute, ["pinv"], [matrix])[0]


@rule("pinv")
def _pinv(g: Any, y: Any, xs: Sequence[Any], arg: Any) -> Sequence[Any]:
    """Of matrices whose rank stays (G. Golub, V. Pereyra, 1973)."""
    turned, up, out = y.transpose(-1, -2), g.transpose(-1, -2), xs[0]
    left = up - out @ (y @ up)
    right = up - (up @ y) @ out
    return (left @ (y @ turned) + (turned @ y) @ right - turned @ g @ turned,)


def matrix_power(a: Tensor, n: int) -> Tensor:
    """Return the product of n factors; of the inverse for negative n. They may be complex."""
    pair = complex_of(a)
    if pair is not None:
        return complex_matrix(left_half(matrix_power(whole(pair), n)))
    matrix = square_of("matrix_power", a)
    if not matrix.numel():
        return matrix
    if type(n) is not int:
        raise BadArgument(f"matrix_power: expected an int, got {n!r}")
    factor = inv(matrix) if n < 0 else matrix
    result: Tensor | None = None
    for bit in bin(abs(n))[:1:-1]:
        if bit == "1":
            result = factor if result is None else result @ factor
        factor = factor @ factor
    if result is None:
        return nothing(matrix, *matrix.shape[-2:])
    return result


def vector_norm(
    a: Tensor, ord: float = 2, axis: Axis = None, keepdims: bool = False, *,
    dtype: DType | str | None = None,
) -> Tensor:  # fmt: skip
    """Return the norm of vectors along axes (None: of all elements), see `Tensor.norm`."""
    return a.norm(ord, axis, keepdims, dtype=dtype)


def norm(
    a: Tensor, ord: float | str | None = None, axis: Axis = None, keepdims: bool = False, *,
    dtype: DType | str | None = None,
) -> Tensor:  # fmt: skip
    """Return `matrix_norm` for two axes, or for an ord of matrices without axes, otherwise
    `vector_norm`; by default the root of the sum of squares."""
    if ord is None:
        return a.norm(2, axis, keepdims, dtype=dtype)
    axes = tuple(range(a.ndim)) if axis is None else a._axes("norm", axis)
    if len(axes) == 2:
        return matrix_norm(a, ord, axes, keepdims, dtype=dtype)
    if isinstance(ord, str) or (axis is None and a.ndim != 1):
        raise BadArgument(f"norm: ord {ord!r} expected one or two axes, got {list(axes)}")
    return a.norm(ord, axes, keepdims, dtype=dtype)


def cond(a: Tensor, p: float | str | None = None) -> Tensor:
    """Return the condition of matrices: the norm times that of the inverse. p: of `matrix_norm`,
    by default 2, the quotient of the largest and smallest singular values."""
    matrix = matrix_of("cond", a)
    if p in (None, 2, -2):
        values = svdvals(matrix)
        most, least = values.max(-1), values.min(-1)
        return least / most if p == -2 else most / least
    assert p is not None
    square = square_of("cond", a)
    return matrix_norm(square, p) * matrix_norm(inv(square), p)


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """Return the product of several matrices; the first and last may be vectors. The cheapest pair
    is multiplied first."""
    if len(tensors) < 2:
        raise BadArgument(f"multi_dot: expected two tensors or more, got {len(tensors)}")
    parts = list(tensors)
    while len(parts) > 1:
        costs = [math.prod(one.shape) * (two.shape[-1] if two.ndim > 1 else 1)
                 for one, two in pairwise(parts)]  # fmt: skip
        at = costs.index(min(costs))
        parts[at : at + 2] = [parts[at] @ parts[at + 1]]
    return parts[0]


def solve_triangular(
    a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """Return x of a @ x = b (left=False: x @ a = b), of which only one triangle of a is read.
    unitriangular: ones are taken for the diagonal."""
    matrix = square_of("solve_triangular", a)
    matrix = matrix.triu() if upper else matrix.tril()
    if unitriangular:
        one = Tensor.eye(matrix.shape[-1], device=matrix.device, dtype=matrix.dtype)
        matrix = matrix * (1 - one) + one
    right = b.unsqueeze(0) if 1 < b.ndim < a.ndim else b  # not a vector for each matrix
    if left:
        return solve(matrix, right)
    return solve(matrix.transpose(-1, -2), right.transpose(-1, -2)).transpose(-1, -2)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return `Tensor.matmul`."""
    return a @ b


def cross(a: Tensor, b: Tensor, axis: int = -1) -> Tensor:
    """Return `Tensor.cross`."""
    return a.cross(b, axis)


def vecdot(a: Tensor, b: Tensor, axis: int = -1) -> Tensor:
    """Return `Tensor.vecdot`."""
    return a.vecdot(b, axis)


def diagonal(a: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Return `Tensor.diagonal`."""
    return a.diagonal(offset, dim1, dim2)


aliased_module(globals(), __name__)
