"""Block formats of GGUF whose values are points of a lattice: the IQ types.

The lattices are tables of ggml (MIT licence), taken from the package `gguf` (the extra "gguf").
Formulas: ggml-org/ggml, ggml-quants.c.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ugpu.compiler.files.bits import byte_pair, byte_quad, float16_at, parts
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import MissingDependency

_INSTALL = "pip install 'ugpu[gguf]'"


def _lattice(name: str, device: Any) -> Tensor:
    """Return a table of points: float32 [points, values of one]."""
    try:
        quants = importlib.import_module("gguf.quants")
    except ImportError:
        raise MissingDependency(
            f"tensors of {name} need the tables of the package gguf: {_INSTALL}", install=_INSTALL
        ) from None
    form = getattr(quants, name)
    form.init_grid()
    points: NDArray[np.float32] = np.asarray(form.grid, np.float32)
    return Tensor(points.reshape(points.shape[-2:]), device=device)


def _points(name: str, index: Tensor) -> Tensor:
    """Return the points at [n, k] indices: [n, k, values of one]."""
    return _lattice(name, index.device)[index.cast("int32")]


def _pairs(raw: Tensor, start: int, count: int) -> Tensor:
    """Return `count` values of 16 bits: uint16 [n, count]."""
    pairs = raw[:, start : start + 2 * count].reshape(-1, count, 2).cast("uint16")
    return pairs[:, :, 0] | pairs[:, :, 1] << 8


def _quads(raw: Tensor, start: int, count: int) -> Tensor:
    """Return `count` values of 32 bits that are 8 bytes apart: uint32 [n, count]."""
    first = byte_quad(raw, start)
    return first.cat([byte_quad(raw, start + 8 * n) for n in range(1, count)], 1)


def _signs(bits: Tensor) -> Tensor:
    """Return 1 or -1 for the bits of each byte: uint8 [n, k] gives float32 [n, k, 8]."""
    return 1 - parts(bits, 8, 1).float() * 2


def _even(bits: Tensor) -> Tensor:
    """Return 7 bits completed by an eighth that makes the number of ones even."""
    folded = bits ^ bits >> 4
    folded = folded ^ folded >> 2
    folded = folded ^ folded >> 1
    return bits | (folded & 1) << 7


def _seven(words: Tensor) -> Tensor:
    """Return the four sign bytes of each word of 32 bits: [n, k] gives uint8 [n, 4 k]."""
    shifts = Tensor.arange(4, device=words.device, dtype="uint32") * 7
    fields = (words.unsqueeze(2) >> shifts & 127).cast("uint8")
    return _even(fields).reshape(words.shape[0], -1)


def iq2_xxs(raw: Tensor) -> Tensor:
    """Per 32 elements: 4 bytes of points, then 4 x 7 signs and 4 bits of scale."""
    groups = raw[:, 2:].reshape(-1, 8, 8)
    words = _quads(groups.reshape(-1, 64), 4, 8)
    points = _points("IQ2_XXS", groups[:, :, :4].reshape(-1, 32))
    scale = float16_at(raw, 0) * ((words >> 28).float() + 0.5) * 0.25
    values = points * _signs(_seven(words))
    return (scale.unsqueeze(2) * values.reshape(-1, 8, 32)).reshape(-1, 256)


def iq2_xs(raw: Tensor) -> Tensor:
    """Per 8 elements: 9 bits of a point and 7 signs; per 16 a scale."""
    words = _pairs(raw, 2, 32)
    scale = float16_at(raw, 0) * (parts(raw[:, 66:], 2, 4).reshape(-1, 16).float() + 0.5) * 0.25
    values = _points("IQ2_XS", words & 511) * _signs(_even((words >> 9).cast("uint8")))
    return (scale.unsqueeze(2) * values.reshape(-1, 16, 16)).reshape(-1, 256)


def iq2_s(raw: Tensor) -> Tensor:
    """Per 8 elements: 10 bits of a point and 8 signs; per 16 a scale."""
    high = parts(raw[:, 66:74], 4, 2).reshape(-1, 32).cast("uint16")
    points = _points("IQ2_S", raw[:, 2:34].cast("uint16") | high << 8)
    scale = float16_at(raw, 0) * (parts(raw[:, 74:], 2, 4).reshape(-1, 16).float() + 0.5) * 0.25
    values = points * _signs(raw[:, 34:66])
    return (scale.unsqueeze(2) * values.reshape(-1, 16, 16)).reshape(-1, 256)


def iq3_xxs(raw: Tensor) -> Tensor:
    """Per 4 elements a byte; per 32 elements 4 x 7 signs and 4 bits of scale."""
    quads = raw[:, 66:].reshape(-1, 4)
    words = byte_quad(quads, 0).reshape(-1, 8)
    points = _points("IQ3_XXS", raw[:, 2:66])
    scale = float16_at(raw, 0) * ((words >> 28).float() + 0.5) * 0.5
    values = points.reshape(-1, 32, 8) * _signs(_seven(words))
    return (scale.unsqueeze(2) * values.reshape(-1, 8, 32)).reshape(-1, 256)


def iq3_s(raw: Tensor) -> Tensor:
    """Per 4 elements 9 bits of a point; per 8 elements 8 signs; per 32 elements a scale."""
    high = parts(raw[:, 66:74], 8, 1).reshape(-1, 64).cast("uint16")
    points = _points("IQ3_S", raw[:, 2:66].cast("uint16") | high << 8)
    scale = float16_at(raw, 0) * (parts(raw[:, 106:], 2, 4).reshape(-1, 8).float() * 2 + 1)
    values = points.reshape(-1, 32, 8) * _signs(raw[:, 74:106])
    return (scale.unsqueeze(2) * values.reshape(-1, 8, 32)).reshape(-1, 256)


def iq1_s(raw: Tensor) -> Tensor:
    """Per 8 elements 11 bits of a point; per 32 elements a scale and a shift of an eighth."""
    words = _pairs(raw, 34, 8)
    shifts = Tensor.arange(4, device=raw.device, dtype="uint16") * 3
    high = (words.unsqueeze(2) >> shifts & 7).reshape(-1, 32)
    points = _points("IQ1_S", raw[:, 2:34].cast("uint16") | high << 8)
    scale = float16_at(raw, 0) * ((words >> 12 & 7).float() * 2 + 1)
    shift = 0.125 - (words >> 15).float() * 0.25
    values = points.reshape(-1, 8, 32) + shift.unsqueeze(2)
    return (scale.unsqueeze(2) * values).reshape(-1, 256)


def iq1_m(raw: Tensor) -> Tensor:
    """As IQ1_S, a shift for each 8 elements, a scale for each 16; the block's scale lies in the top
    nibbles of four words."""
    d = byte_pair(raw, 48) >> 12
    for n in range(1, 4):
        d = d | byte_pair(raw, 48 + 2 * n) >> 12 << 4 * n
    fields = parts(raw[:, 32:48], 2, 4).reshape(-1, 32)
    points = _points("IQ1_S", raw[:, :32].cast("uint16") | (fields & 7).cast("uint16") << 8)
    words = _pairs(raw, 48, 4)
    shifts = Tensor.arange(4, device=raw.device, dtype="uint16") * 3
    scales = (words.unsqueeze(2) >> shifts & 7).reshape(-1, 16).float() * 2 + 1
    shift = 0.125 - (fields >> 3).float() * 0.25
    values = (points + shift.unsqueeze(2)).reshape(-1, 16, 16)
    whole = d.bitcast("float16").float() * scales
    return (whole.unsqueeze(2) * values).reshape(-1, 256)
