"""Eigenvalues and singular values by Jacobi rotations (C. Jacobi, 1846; M. Hestenes, 1958).

A round rotates all pairs of a tournament's round at once: each column has one partner, so that a
round is a few kernels over the whole matrix. The pairs are data: all rounds run the same kernels.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ugpu.compiler.complex.tensor import ComplexTensor
from ugpu.compiler.numeric.pairs import (
    choose,
    conjugate,
    direction,
    like,
    real_of,
    squared,
    turned,
)
from ugpu.compiler.numeric.steps import computed
from ugpu.compiler.tensor import Tensor

SWEEPS = 10  # over all pairs: they converge quadratically, after about log2(n) sweeps


def rounds(size: int) -> NDArray[np.int64]:
    """Return each round's partner of each of `size` columns, its own number if it has none."""
    even = size + size % 2
    order = list(range(even))
    partners = []
    for _ in range(even - 1):
        partner = np.arange(even)
        for one, two in zip(order[: even // 2], reversed(order[even // 2 :]), strict=True):
            partner[one], partner[two] = two, one
        kept = partner[:size]
        partners.append(np.where(kept < size, kept, np.arange(size)))
        order = [order[0], order[-1], *order[1:-1]]
    return np.array(partners, np.int64).reshape(even - 1, size)


def eigen(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues [batch, n], smallest first, and eigenvectors, in columns, of symmetric
    or Hermitian matrices [batch, n, n], whose lower triangles are read."""
    count, size, _ = matrices.shape
    lower = matrices.tril()
    strict = lower.tril(-1)
    diagonals = like(real_of(lower).triu(), lower)  # of Hermitian matrices they are real
    current = (strict + diagonals + turned(strict)).contiguous()
    vectors = _identity(count, size, matrices)
    columns = Tensor.arange(size, device=matrices.device)
    for partner in _schedule(size, matrices):
        diagonal = real_of(current.diagonal(0, -2, -1))
        shape = (count, size, 1)
        off = current.gather(2, partner.reshape((1, size, 1)).expand(shape)).squeeze(2)
        # Both columns of a pair rotate by one element: where eigenvalues are equal, the two of
        # them differ, by rounding, as much as the angle is wide.
        off = choose(columns < partner, off, conjugate(off[:, partner]))
        cosine, sine = _rotation(diagonal, diagonal[:, partner], off, columns, partner)
        cosine, sine = computed(cosine.contiguous(), sine.contiguous())
        half = _rotated(current, partner, cosine, sine).contiguous()
        vectors = _rotated(vectors, partner, cosine, sine).contiguous()
        half, vectors = computed(half, vectors)
        (current,) = computed(_rotated(turned(half), partner, cosine, sine).contiguous())
    values, order = real_of(current.diagonal(0, -2, -1)).sort(-1)
    return values, vectors.gather(2, order.unsqueeze(1).expand(vectors.shape))


def singular(matrices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return U [batch, m, n], singular values [batch, n], largest first, and V [batch, n, n] of
    matrices [batch, m, n] with m >= n. Columns of U of a singular value of zero are zero."""
    count, _, size = matrices.shape
    current, vectors = matrices.contiguous(), _identity(count, size, matrices)
    columns = Tensor.arange(size, device=matrices.device)
    for partner in _schedule(size, matrices):
        other = current[:, :, partner]
        squares = squared(current).sum(1)
        products = (conjugate(current) * other).sum(1)
        squares, products = computed(squares, products)
        # As in `eigen`, by one element: the two may be rounded differently.
        products = choose(columns < partner, products, conjugate(products[:, partner]))
        cosine, sine = _rotation(squares, squares[:, partner], products, columns, partner)
        cosine, sine = computed(cosine.contiguous(), sine.contiguous())
        current = _rotated(current, partner, cosine, sine).contiguous()
        vectors = _rotated(vectors, partner, cosine, sine).contiguous()
        current, vectors = computed(current, vectors)
    lengths = squared(current).sum(1).sqrt()
    values, order = lengths.sort(-1, descending=True)
    chosen = current.gather(2, order.unsqueeze(1).expand(current.shape))
    nothing = values <= values[:, :1] * 1e-30
    left = choose(nothing.unsqueeze(1), 0.0, chosen / nothing.where(1.0, values).unsqueeze(1))
    return left, values, vectors.gather(2, order.unsqueeze(1).expand(vectors.shape))


def _schedule(size: int, other: Tensor) -> list[Tensor]:
    if size < 2:
        return []
    table = Tensor(rounds(size), device=other.device)
    partners = [table[place].contiguous() for place in range(table.shape[0])]
    partners[0].realize(*partners[1:])
    return partners * SWEEPS


def _identity(count: int, size: int, other: Tensor) -> Tensor:
    eye = Tensor.eye(size, device=other.device, dtype=real_of(other).dtype)
    return like(eye.expand((count, size, size)), other).contiguous()


def _rotation(
    own: Tensor, others: Tensor, off: Tensor, columns: Tensor, partner: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the rotation that brings `off` to zero: each column becomes cosine times itself plus
    sine times its partner. own, others: diagonal elements. A column without a partner stays. The
    sine has the conjugate direction of a complex `off`."""
    first = columns < partner
    if isinstance(off, ComplexTensor):
        cosine, sine = _rotation(own, others, off.abs(), columns, partner)
        return cosine, conjugate(direction(off)) * sine
    none = off._compare("eq", 0) | columns._compare("eq", partner)
    apart = first.where(others - own, own - others)
    ratio = apart / (none.where(1.0, off) * 2.0)
    tangent = (ratio < 0).where(-1.0, 1.0) / (ratio.abs() + ratio.hypot(1.0))
    tangent = none.where(0.0, tangent)
    cosine = (tangent.square() + 1.0).rsqrt()
    sine = cosine * tangent
    return cosine, first.where(-sine, sine)


def _rotated(x: Tensor, partner: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate columns."""
    return x * cosine.unsqueeze(1) + x[:, :, partner] * sine.unsqueeze(1)
