"""Quantised blocks of GGUF, dequantised by tensor operations on the device.

Each format turns an array of bytes, one row for each block, into float32. Bytes are named by their
offset in a block. The results are bit-identical to ggml's own on hosts.
Source: ggml-org/ggml, ggml-common.h (layouts) and ggml-quants.c (formulas); MIT licence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ugpu.compiler.files import lattices
from ugpu.compiler.files.bits import byte_pair, float16_at, low_high, nibbles, parts, signed
from ugpu.compiler.files.entry import Scaled
from ugpu.compiler.graph.node import Shape
from ugpu.compiler.tensor import Tensor

NONLINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


@dataclass(frozen=True)
class Block:
    """A block format: its name, elements and bytes, and the function from bytes [n, bytes] to
    float32 [n, elements], or to groups of them."""

    name: str
    elements: int
    bytes: int
    values: Callable[[Tensor], Tensor | Scaled]


def decoder(block: Block, shape: Shape) -> Callable[[Tensor], Tensor]:
    """Return the function from a tensor's blocks to the tensor."""

    def decode(raw: Tensor) -> Tensor:
        values = block.values(raw)
        return (values.floats() if isinstance(values, Scaled) else values).reshape(shape)

    return decode


def grouped(block: Block, raw: Tensor) -> Scaled | None:
    """Return a tensor's groups of elements; None if the format has none."""
    values = block.values(raw)
    return values if isinstance(values, Scaled) else None


def table(values: Tensor, numbers: tuple[float, ...]) -> Tensor:
    """Return numbers[values]. values: integers below the table's length."""
    return Tensor(np.array(numbers, np.float32), device=values.device)[values.cast("int32")]


# ---- 32 elements ---------------------------------------------------------------------------------


def _high_bits(raw: Tensor, at: int) -> Tensor:
    """Return the fifth bits of 32 elements, in 4 bytes, times 16: [n, 32]."""
    return (parts(raw[:, at : at + 4], 8, 1) << 4).reshape(-1, 32)


def _group(
    raw: Tensor, codes: Tensor, least: int | None = None, *, zero: int = 0, bits: int = 8
) -> Scaled:
    """Return a block of one group, whose scale is its first float16. least: where the float16 that
    is added to all is."""
    added = None if least is None else float16_at(raw, least).unsqueeze(2)
    return Scaled(float16_at(raw, 0).unsqueeze(2), codes.unsqueeze(1), added, zero, bits)


def _q4_0(raw: Tensor) -> Scaled:
    return _group(raw, nibbles(raw[:, 2:]), zero=8, bits=4)


def _q4_1(raw: Tensor) -> Scaled:
    return _group(raw, nibbles(raw[:, 4:]), 2, bits=4)


def _q5_0(raw: Tensor) -> Scaled:
    return _group(raw, nibbles(raw[:, 6:]) | _high_bits(raw, 2), zero=16, bits=5)


def _q5_1(raw: Tensor) -> Scaled:
    return _group(raw, nibbles(raw[:, 8:]) | _high_bits(raw, 4), 2, bits=5)


def _q8_0(raw: Tensor) -> Scaled:
    return _group(raw, raw[:, 2:].bitcast("int8"))


def _iq4_nl(raw: Tensor) -> Scaled:
    return _group(raw, _numbers(nibbles(raw[:, 2:])))


def _numbers(values: Tensor) -> Tensor:
    """Return NONLINEAR[values], as int8."""
    return Tensor(np.array(NONLINEAR, np.int8), device=values.device)[values.cast("int32")]


def _mxfp4(raw: Tensor) -> Tensor:
    exponent = raw[:, :1].cast("uint32")
    # 2^(e - 127): e is the biased exponent of a float32; e = 0 is denormal there
    scale = (exponent < 1).where(1 << 22, exponent << 23).cast("uint32").bitcast("float32")
    return scale * table(nibbles(raw[:, 1:]), E2M1)


def _nvfp4(raw: Tensor) -> Tensor:
    scale = raw[:, :4].cast("int32")
    exponent, fraction = scale >> 3 & 15, (scale & 7).float()
    power = ((exponent + 120) << 23).bitcast("float32")  # 2^(exponent - 7)
    value = (exponent < 1).where(fraction * 2.0**-9, (fraction / 8 + 1) * power)
    value = ((scale ^ 127) < 1).where(0.0, value)
    numbers = table(nibbles(raw[:, 4:].reshape(-1, 8)), E2M1).reshape(-1, 4, 16)
    return (value.unsqueeze(2) * numbers).reshape(-1, 64)


def _q1_0(raw: Tensor) -> Tensor:
    return float16_at(raw, 0) * (parts(raw[:, 2:], 8, 1).reshape(-1, 128).float() * 2 - 1)


# ---- 256 elements --------------------------------------------------------------------------------


def _q2_k(raw: Tensor) -> Scaled:
    scales = raw[:, :16].reshape(-1, 16, 1)
    codes = low_high(raw[:, 16:80].reshape(-1, 2, 32), 4, 2).reshape(-1, 16, 16)
    d, m = (float16_at(raw, at).unsqueeze(2) for at in (80, 82))
    return Scaled(d * (scales & 15).float(), codes, -(m * (scales >> 4).float()), bits=2)


def _q3_k(raw: Tensor) -> Scaled:
    low = low_high(raw[:, 96:104].reshape(-1, 1, 8), 2, 4).reshape(-1, 16)
    high = low_high(raw[:, 104:108].reshape(-1, 1, 4), 4, 2).reshape(-1, 16)
    scales = (low | high << 4).float().reshape(-1, 16, 1) - 32
    codes = low_high(raw[:, 32:96].reshape(-1, 2, 32), 4, 2).reshape(-1, 16, 16)
    mask = low_high(raw[:, :32].reshape(-1, 1, 32), 8, 1).reshape(-1, 16, 16)
    return Scaled(float16_at(raw, 108).unsqueeze(2) * scales, codes | mask << 2, zero=4, bits=3)


def _scales_k(raw: Tensor) -> tuple[Tensor, Tensor]:
    """Return the 8 scales and 8 minima of Q4_K and Q5_K, of 6 bits, as float32 [n, 8, 1]."""
    x, y, z = raw[:, 4:8], raw[:, 8:12], raw[:, 12:16]
    scales = (x & 63).cat([z & 15 | x >> 6 << 4], 1)
    minima = (y & 63).cat([z >> 4 | y >> 6 << 4], 1)
    return scales.float().reshape(-1, 8, 1), minima.float().reshape(-1, 8, 1)


def _scaled_k(raw: Tensor, codes: Tensor, bits: int) -> Scaled:
    scales, minima = _scales_k(raw)
    d, m = (float16_at(raw, at).unsqueeze(2) for at in (0, 2))
    return Scaled(d * scales, codes.reshape(-1, 8, 32), -(m * minima), bits=bits)


def _q4_k(raw: Tensor) -> Scaled:
    return _scaled_k(raw, low_high(raw[:, 16:].reshape(-1, 4, 32), 2, 4), 4)


def _q5_k(raw: Tensor) -> Scaled:
    low = low_high(raw[:, 48:].reshape(-1, 4, 32), 2, 4).reshape(-1, 8, 32)
    high = low_high(raw[:, 16:48].reshape(-1, 1, 32), 8, 1).reshape(-1, 8, 32)
    return _scaled_k(raw, low | high << 4, 5)


def _q6_k(raw: Tensor) -> Scaled:
    low = low_high(raw[:, :128].reshape(-1, 2, 64), 2, 4).reshape(-1, 256)
    high = low_high(raw[:, 128:192].reshape(-1, 2, 32), 4, 2).reshape(-1, 256)
    codes = (low | high << 4).reshape(-1, 16, 16)
    scales = signed(raw[:, 192:208]).unsqueeze(2)
    return Scaled(float16_at(raw, 208).unsqueeze(2) * scales, codes, zero=32, bits=6)


def _iq4_xs(raw: Tensor) -> Scaled:
    low = parts(raw[:, 4:8], 2, 4).reshape(-1, 8)
    pair = byte_pair(raw, 2)
    shifts = Tensor.arange(8, device=raw.device, dtype="uint16") * 2
    high = (pair >> shifts & 3).cast("uint8")
    scales = (low | high << 4).float().unsqueeze(2) - 32
    codes = _numbers(nibbles(raw[:, 8:].reshape(-1, 16))).reshape(-1, 8, 32)
    return Scaled(float16_at(raw, 0).unsqueeze(2) * scales, codes)


def _tq2_0(raw: Tensor) -> Tensor:
    values = low_high(raw[:, :64].reshape(-1, 2, 32), 4, 2).reshape(-1, 256).float()
    return float16_at(raw, 64) * (values - 1)


def _tq1_0(raw: Tensor) -> Tensor:
    """Base 3, five digits a byte: 160 elements in 32 bytes, 80 in 16; then 16 in 4, four digits a
    byte."""
    pieces = []
    for start, stop, digits in ((0, 32, 5), (32, 48, 5), (48, 52, 4)):
        powers = Tensor(np.array([3**n for n in range(digits)], np.uint8), device=raw.device)
        shifted = raw[:, start:stop].unsqueeze(1) * powers.reshape(1, digits, 1)  # wraps at 256
        pieces.append((shifted.cast("uint16") * 3 >> 8).reshape(raw.shape[0], -1))
    values = pieces[0].cat(pieces[1:], 1).float()
    return float16_at(raw, 52) * (values - 1)


BLOCKS = {
    2: Block("Q4_0", 32, 18, _q4_0),
    3: Block("Q4_1", 32, 20, _q4_1),
    6: Block("Q5_0", 32, 22, _q5_0),
    7: Block("Q5_1", 32, 24, _q5_1),
    8: Block("Q8_0", 32, 34, _q8_0),
    10: Block("Q2_K", 256, 84, _q2_k),
    11: Block("Q3_K", 256, 110, _q3_k),
    12: Block("Q4_K", 256, 144, _q4_k),
    13: Block("Q5_K", 256, 176, _q5_k),
    14: Block("Q6_K", 256, 210, _q6_k),
    16: Block("IQ2_XXS", 256, 66, lattices.iq2_xxs),
    17: Block("IQ2_XS", 256, 74, lattices.iq2_xs),
    18: Block("IQ3_XXS", 256, 98, lattices.iq3_xxs),
    19: Block("IQ1_S", 256, 50, lattices.iq1_s),
    20: Block("IQ4_NL", 32, 18, _iq4_nl),
    21: Block("IQ3_S", 256, 110, lattices.iq3_s),
    22: Block("IQ2_S", 256, 82, lattices.iq2_s),
    23: Block("IQ4_XS", 256, 136, _iq4_xs),
    29: Block("IQ1_M", 256, 56, lattices.iq1_m),
    34: Block("TQ1_0", 256, 54, _tq1_0),
    35: Block("TQ2_0", 256, 66, _tq2_0),
    39: Block("MXFP4", 32, 17, _mxfp4),
    40: Block("NVFP4", 64, 36, _nvfp4),
    41: Block("Q1_0", 128, 18, _q1_0),
}
