"""Winograd's F(4x4, 3x3) and F(3x3, 4x4): a rewrite of convolutions with a quarter of the products.

before: out[o, y, x] = sum over c, i, j of weight[o, c, i, j] * image[c, y + i, x + j]
after, for each tile of n x n results, made of 6 x 6 elements of the image (n = 7 - window):

    U[k, o, c]    = sum over q of WEIGHT[k, q] * weight[o, c, q]       k: 36 places, q: of a window
    V[k, c, tile] = sum over q of IMAGE[k, q] * elements[q, c, tile]                     q: 36
    M[k, o, tile] = sum over c of U[k, o, c] * V[k, c, tile]               36 matrix products
    out           = sum over k of RESULT[p, k] * M[k, o, tile]             p: places in a tile

The three transforms are products with constant matrices, Kronecker squares of the one-dimensional
ones (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", section 4.2): polynomials
at the points 0, 1, -1, 2, -2 and infinity, so that IMAGE is the same for all windows. They add
numbers up to 8 times as large as the results, so rounding errors are about ten times those of the
plain sum: at most TOLERANCE times the root of the summed squares of a result's terms.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WINDOWS = (3, 4)
AROUND = 6  # elements of the image in a row of a tile
TOLERANCE = 2e-4

POINTS = (0, 1, -1, 2, -2)
SCALES = (1 / 4, -1 / 6, -1 / 6, 1 / 24, 1 / 24)  # of the weights at a point
_IMAGE = (
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)


def tile(window: int) -> int:
    """Return the number of results in a row of a tile."""
    return AROUND + 1 - window


def matrices(window: int) -> dict[str, NDArray[np.float32]]:
    """Return IMAGE [36, 36], WEIGHT [36, window^2] and RESULT [tile^2, 36] by name."""
    powers = [[point**n for n in range(AROUND)] for point in POINTS]
    weight = np.eye(AROUND, window, window - AROUND)  # its last row: at infinity
    weight[:-1] = [
        [scale * each for each in row[:window]] for row, scale in zip(powers, SCALES, strict=True)
    ]
    results = tile(window)
    result = np.eye(results, AROUND, AROUND - results)
    result[:, :-1] = np.transpose([row[:results] for row in powers])
    made = {"image": np.array(_IMAGE), "weight": weight, "result": result}
    return {name: np.kron(rows, rows).astype(np.float32) for name, rows in made.items()}


def tiles(size: int, window: int) -> int:
    """Return the number of tiles along an axis of `size` results."""
    return -(-size // tile(window))
