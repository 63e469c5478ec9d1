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

from ugpu.compiler import dtype as dtypes
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
from ugpu.compiler.numeric.steps import matrix_of, nothing, square_of
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument

Tolerance = float | Tensor | None


def eigvalsh(a: Tensor) -> Tensor:
    """Return the eigenvalues of `eigh`."""
    return eigh(a)[0]


def svdvals(a: Tensor) -> Tensor:
    """Return the singular values of `svd`."""
    return svd(a)[1]


def _counted(values: Tensor, shape: Sequence[int], rtol: Tolerance) -> Tensor:
    """Return which singular values of matrices of a shape count, see `pinv`."""
    precision = 2.0**-52 if values.dtype is dtypes.float64 else 2.0**-23
    share = max(shape[-2:]) * precision if rtol is None else rtol
    limit = values.max(-1, keepdims=True)
    limit = limit * (share.unsqueeze(-1) if isinstance(share, Tensor) else share)
    return values > limit


def matrix_rank(a: Tensor, rtol: Tolerance = None) -> Tensor:
    """Return the number of singular values that count, see `pinv`, as int64."""
    matrix = matrix_of("matrix_rank", a)
    return _counted(svdvals(matrix), matrix.shape, rtol).sum(-1)


def matrix_norm(a: Tensor, ord: float | str = "fro", keepdims: bool = False) -> Tensor:
    """Return a norm of matrices: "fro", the root of the sum of squares; "nuc", the sum of the
    singular values; 2 and -2, the largest and smallest of them; 1 and -1, the largest and smallest
    sum of magnitudes of a column; infinity and minus infinity, of a row."""
    matrix = matrix_of("matrix_norm", a)
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
    result = result.cast(dtypes.float_dtype(a.dtype))
    return result.unsqueeze(-1).unsqueeze(-1) if keepdims else result


def pinv(a: Tensor, rtol: Tolerance = None) -> Tensor:
    """Return the pseudo-inverse. Singular values up to rtol times the largest count as zero
    (default: the larger side times the type's precision); rtol: a number, or one of each matrix."""
    matrix = matrix_of("pinv", a)
    left, values, right = svd(matrix)
    kept = _counted(values, matrix.shape, rtol)
    inverse = kept.where(1.0 / kept.where(values, 1.0), 0.0)
    return (right.transpose(-1, -2) * inverse.unsqueeze(-2)) @ left.transpose(-1, -2)


def matrix_power(a: Tensor, n: int) -> Tensor:
    """Return the product of n factors; of the inverse for negative n."""
    matrix = square_of("matrix_power", a)
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
    a: Tensor, ord: float = 2, axis: Axis = None, keepdims: bool = False
) -> Tensor:  # fmt: skip
    """Return the norm of vectors along axes (None: of all elements), see `Tensor.norm`."""
    return a.norm(ord, axis, keepdims)


def norm(
    a: Tensor, ord: float | str | None = None, axis: Axis = None, keepdims: bool = False
) -> Tensor:  # fmt: skip
    """Return `matrix_norm` for two axes, or for an ord of matrices without axes, otherwise
    `vector_norm`; by default the root of the sum of squares."""
    if ord is None:
        return a.norm(2, axis, keepdims)
    axes = tuple(range(a.ndim)) if axis is None else a._axes("norm", axis)
    if len(axes) == 2:
        rest = [each for each in range(a.ndim) if each not in axes]
        result = matrix_norm(a.permute(*rest, *axes), ord)
        for each in sorted(axes) if keepdims else ():
            result = result.unsqueeze(each)
        return result
    if isinstance(ord, str) or (axis is None and a.ndim != 1):
        raise BadArgument(f"norm: ord {ord!r} expected one or two axes, got {list(axes)}")
    return a.norm(ord, axes, keepdims)


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
    if left:
        return solve(matrix, b)
    return solve(matrix.transpose(-1, -2), b.transpose(-1, -2)).transpose(-1, -2)


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
