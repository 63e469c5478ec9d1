"""The factors of a length, and the table of turns that the passes of a transform multiply by.

Pass by pass, for p below m and c from 1 below the radix, the turn by p c / (m radix); then, for
real signals, the turns by k / (2 size) for k up to half the size.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from ugpu.compiler.graph.fourier import Signals

LONGEST = 2048  # elements of a signal: those of a vector of signals stay in the second cache
# What an element costs in a pass of this radix, by its arithmetic; a pass itself costs PASS.
RADICES = {2: 2, 3: 4, 4: 4, 5: 7, 6: 7, 7: 12, 8: 7, 9: 11, 10: 11, 11: 20, 13: 24, 16: 12}
PASS = 6


@cache
def factors(size: int) -> tuple[int, ...] | None:
    """Return the radices of the passes for a length, the cheapest; None if it has another factor.
    The passes of small radices are last: they have fewer turns."""
    best = _cheapest(size)
    return None if best is None else tuple(sorted(best[1], reverse=True))


@cache
def _cheapest(size: int) -> tuple[int, tuple[int, ...]] | None:
    if size == 1:
        return 0, ()
    known = []
    for radix, cost in RADICES.items():
        rest = _cheapest(size // radix) if size % radix == 0 else None
        if rest is not None:
            known.append((PASS + cost + rest[0], (radix, *rest[1])))
    return min(known, default=None)


def fits(signals: int) -> bool:
    """Return whether a kernel transforms signals of this length."""
    return 2 <= signals <= LONGEST and factors(signals) is not None


def table(signals: Signals) -> NDArray[np.float64]:
    """Return the turns, of sign -1: cosine and sine side by side."""
    radices = factors(signals.size)
    assert radices is not None, signals
    angles: list[NDArray[np.float64]] = [np.zeros(1)]
    left = signals.size
    for radix in radices:
        rest = left // radix
        if rest > 1:
            products = np.multiply.outer(np.arange(rest), np.arange(1, radix)) % left
            angles.append(products.ravel() / left)
        left = rest
    if signals.real:
        angles.append(np.arange(signals.size // 2 + 1) / (2 * signals.size))
    turned = -2 * np.pi * np.concatenate(angles)
    return np.stack([np.cos(turned), np.sin(turned)], -1).ravel()
