"""Linear algebra, `ugpu.linalg`; names and results as in `torch.linalg`, computed in float32.

Every function works on matrices [..., rows, columns] and runs on the device. An elimination or
factorisation takes as many steps as the matrix has columns. The number of the step is data, so that
all steps run the same kernels. A singular matrix gives infinities or NaN, not an error: to find out
would have to wait for the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.numeric.elimination import det as det
from ugpu.compiler.numeric.elimination import inv as inv
from ugpu.compiler.numeric.elimination import slogdet as slogdet
from ugpu.compiler.numeric.elimination import solve as solve
from ugpu.compiler.numeric.factorisation import cholesky as cholesky
from ugpu.compiler.numeric.factorisation import eigh as eigh
from ugpu.compiler.numeric.factorisation import qr as qr
from ugpu.compiler.numeric.factorisation import svd as svd
from ugpu.compiler.numeric.steps import matrix_of, square_of
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
    share = max(shape[-2:]) * 2.0**-23 if rtol is None else rtol
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
    (default: the larger side times float32's precision); rtol: a number, or one for each matrix."""
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
        return Tensor.eye(matrix.shape[-1], device=matrix.device).broadcast_to(matrix.shape)
    return result
