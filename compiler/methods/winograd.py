"""Winograd's F(4x4, 3x3): a rewrite of convolutions with a quarter of the products.

before: out[o, y, x] = sum over c, i, j of weight[o, c, i, j] * image[c, y + i, x + j]
after, for each tile of 4 x 4 results, made of 6 x 6 elements of the image:

    U[k, o, c]    = sum over q of WEIGHT[k, q] * weight[o, c, q]           k: 36 places, q: 9
    V[k, c, tile] = sum over q of IMAGE[k, q] * elements[q, c, tile]                     q: 36
    M[k, o, tile] = sum over c of U[k, o, c] * V[k, c, tile]               36 matrix products
    out           = sum over k of RESULT[p, k] * M[k, o, tile]             p: 16 places in a tile

The three transforms are products with constant matrices, Kronecker squares of the one-dimensional
ones (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", section 4.2). They add
numbers up to 8 times as large as the results, so rounding errors are about ten times those of the
plain sum: at most TOLERANCE times the root of the summed squares of a result's terms.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

TILE, WINDOW = 4, 3
AROUND = TILE + WINDOW - 1  # elements of the image in a row of a tile
TOLERANCE = 2e-4

_IMAGE = (
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)
_WEIGHT = (
    (1 / 4, 0, 0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0, 0, 1),
)
_RESULT = (
    (1, 1, 1, 1, 1, 0),
    (0, 1, -1, 2, -2, 0),
    (0, 1, 1, 4, 4, 0),
    (0, 1, -1, 8, -8, 1),
)


def matrices() -> dict[str, NDArray[np.float32]]:
    """Return IMAGE [36, 36], WEIGHT [36, 9] and RESULT [16, 36] by name."""
    made = {"image": _IMAGE, "weight": _WEIGHT, "result": _RESULT}
    return {name: np.kron(rows, rows).astype(np.float32) for name, rows in made.items()}


def tiles(size: int) -> int:
    """Return the number of tiles along an axis of `size` results."""
    return -(-size // TILE)
