"""Fourier transforms, by products with matrices of sines. Complex numbers are pairs on the last
axis."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ugpu.compiler.onnx.operators.registry import operator
from ugpu.compiler.onnx.operators.shapes import ints
from ugpu.compiler.onnx.operators.tables import table
from ugpu.compiler.tensor import Tensor


def _transformed(x: Tensor, size: int, inverse: bool, onesided: bool) -> Tensor:
    """Transform [..., n, 1 or 2] along its axis before the last one."""
    have = x.shape[-2]
    rest = [(0, 0)] * (x.ndim - 2)
    x = x.pad([*rest, (0, max(0, size - have)), (0, 0)])
    x = x.shrink([(0, n) for n in x.shape[:-2]] + [(0, size), (0, x.shape[-1])])
    count = size // 2 + 1 if onesided else size
    angle = 2 * math.pi / size * (np.outer(np.arange(size), np.arange(count)) % size)
    cosine = table(x, np.cos(angle).astype(np.float32))
    sine = table(x, np.sin(angle if inverse else -angle).astype(np.float32))
    wide = x.float()
    real = wide[..., 0]
    if x.shape[-1] == 1:
        parts = [real @ cosine, real @ sine]
    else:
        imaginary = wide[..., 1]
        parts = [real @ cosine - imaginary @ sine, real @ sine + imaginary @ cosine]
    result = Tensor.stack(parts, -1)
    return (result / size if inverse else result).cast(x.dtype)


@operator("DFT", host=(1, 2))
def dft(
    x: Tensor, length: Any = None, given: Any = None, *, axis: int | None = None,
    inverse: int = 0, onesided: int = 0, opset: int,
) -> Tensor:  # fmt: skip
    place = axis if axis is not None else 1 if opset < 20 else -2
    if given is not None:
        place = ints(given)[0]
    place %= x.ndim
    size = x.shape[place] if length is None else ints(length)[0]
    if inverse and onesided:  # the other half is the conjugate, backwards
        size = size if length is not None else 2 * (x.shape[place] - 1)
        full = _conjugate(x.transpose(place, x.ndim - 2), size)
        result = _transformed(full, size, True, False)[..., :1]
        return result.transpose(place, x.ndim - 2)
    moved = x.transpose(place, x.ndim - 2)
    return _transformed(moved, size, bool(inverse), bool(onesided)).transpose(place, x.ndim - 2)


def _conjugate(x: Tensor, size: int) -> Tensor:
    rest = x[..., 1 : size - x.shape[-2] + 1, :].flip(x.ndim - 2)
    sign = table(x, np.array([1, -1], np.float32)).cast(x.dtype)
    return Tensor.cat([x, rest * sign], x.ndim - 2)


@operator("STFT", host=(1, 3))
def stft(
    signal: Tensor, step: Any, window: Tensor | None = None, length: Any = None, *,
    onesided: int = 1,
) -> Tensor:  # fmt: skip
    size = window.shape[0] if length is None and window is not None else ints(length)[0]
    hop, have = ints(step)[0], signal.shape[1]
    count = (have - size) // hop + 1
    starts = np.arange(count)[:, None] * hop + np.arange(size)[None]
    frames = signal.take(table(signal, starts), 1)  # [batch, frames, size, 1 or 2]
    if window is not None:
        frames = frames * window.reshape(1, 1, -1, 1)
    return _transformed(frames, size, False, bool(onesided) and signal.shape[-1] == 1)
