"""Linear algebra, `ugpu.linalg`; names and results as in `torch.linalg`, computed in float32.

Every function works on matrices [..., rows, columns] and runs on the device. An elimination or
factorisation takes as many steps as the matrix has columns. The number of the step is data, so that
all steps run the same kernels. A singular matrix gives infinities or NaN, not an error: to find out
would have to wait for the device.
"""

from __future__ import annotations

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


def eigvalsh(a: Tensor) -> Tensor:
    """Return the eigenvalues of `eigh`."""
    return eigh(a)[0]


def svdvals(a: Tensor) -> Tensor:
    """Return the singular values of `svd`."""
    return svd(a)[1]


def pinv(a: Tensor, rtol: float | None = None) -> Tensor:
    """Return the pseudo-inverse. Singular values up to rtol times the largest count as zero
    (default: the larger side times float32's precision)."""
    matrix = matrix_of("pinv", a)
    left, values, right = svd(matrix)
    share = max(matrix.shape[-2:]) * 2.0**-23 if rtol is None else rtol
    kept = values > values.max(-1, keepdims=True) * share
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
