"""Compare results of two cores bit by bit, but for what the ISA leaves open: which NaN it is."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]


def both_nan(first: Words, second: Words) -> NDArray[np.bool_]:
    """Return where words are NaNs in both, as f32, as halves, as bfloats or as part of an f64."""
    single = np.isnan(first.view(np.float32)) & np.isnan(second.view(np.float32))
    double = np.zeros(len(first), bool)
    even = len(first) // 2 * 2
    pairs = [words[:even].view(np.float64) for words in (first, second)]
    double[:even] = np.repeat(np.isnan(pairs[0]) & np.isnan(pairs[1]), 2)
    return single | double | _halves(first, second, 0x7C00) | _halves(first, second, 0x7F80)


def _halves(first: Words, second: Words, infinity: int) -> NDArray[np.bool_]:
    """Return where each half is equal, or a 16-bit NaN in both."""
    one, other = (words.view(np.uint16).reshape(-1, 2) for words in (first, second))
    nan = ((one & 0x7FFF) > infinity) & ((other & 0x7FFF) > infinity)
    found: NDArray[np.bool_] = ((one == other) | nan).all(axis=1)
    return found


def close(first: Words, second: Words, ulps: int, kind: str) -> NDArray[np.bool_]:
    """Return where numbers (f16, f32 or f64) lie within `ulps` steps; denormals count as zero.

    The transcendental unit of the chip flushes denormals of f32, and nothing says exactly when.
    """
    if kind == "f16":
        halves = [words.view(np.uint16) for words in (first, second)]
        return _close(*halves, ulps, np.int16, np.float16).reshape(-1, 2).all(axis=1)
    if kind == "f64":
        even = len(first) // 2 * 2
        wide = [words[:even].view(np.uint64) for words in (first, second)]
        found = np.equal(first, second)
        found[:even] |= np.repeat(_close(*wide, ulps, np.int64, np.float64), 2)
        return found
    return _close(first, second, ulps, np.int32, np.float32)


def _close(
    first: NDArray[np.unsignedinteger],
    second: NDArray[np.unsignedinteger],
    ulps: int,
    whole: type[np.signedinteger],
    real: type[np.floating],
) -> NDArray[np.bool_]:
    values = [np.array(bits).view(real) for bits in (first, second)]
    tiny = np.finfo(real).tiny
    steps = []
    for value in values:
        flushed = np.where(np.abs(value) < tiny, real(0), value).astype(real)
        bits = flushed.view(whole).astype(np.int64)
        least = np.int64(np.iinfo(whole).min)
        steps.append(np.where(bits < 0, least - bits, bits))
    near = np.abs(steps[0] - steps[1]) <= ulps
    smallest = (np.abs(values[0]) <= tiny) & (np.abs(values[1]) <= tiny)
    found: NDArray[np.bool_] = (
        (first == second) | near | smallest | (np.isnan(values[0]) & np.isnan(values[1]))
    )
    return found
