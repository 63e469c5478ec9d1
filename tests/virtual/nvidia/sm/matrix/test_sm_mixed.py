"""Sums of an f16 or bf16 and an f32, as compilers write them for sm_100 and later.

Source: PTX ISA 8.6, "Mixed Precision Floating Point Instructions".
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.nvidia.sm.sm_unit import Try, Unit

_HALVES = np.array([0x0000, 0x3C00, 0xBC00, 0x7BFF, 0x0001, 0x3555, 0xC900, 0x8000], np.uint16)
_OTHERS = np.array([0x4000, 0x3800, 0xB555, 0x0001, 0x3C01, 0x4900, 0x3555, 0xBC00], np.uint16)
_WIDE = np.array([1.0, 2.0**-24, -1.5, 0.0, 2.0**-149, 3.0e38, -1.0, 1e-3], np.float32)


def _value(bits: np.ndarray, kind: str) -> np.ndarray:
    if kind == "f16":
        return bits.view(np.float16).astype(np.float64)
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_the_wide_operand_is_the_last(kind: str) -> None:
    tries = [
        Try(f"add.rn.f32.{kind}", 32, (16, 32)),
        Try(f"sub.rn.f32.{kind}", 32, (16, 32)),
        Try(f"fma.rn.f32.{kind}", 32, (16, 16, 32)),
    ]
    a, b, c = _HALVES.tolist(), _OTHERS.tolist(), _WIDE.view(np.uint32).tolist()
    found = Unit(tries, "sm_100").run([[a, c], [a, c], [a, b, c]])
    x, y, z = _value(_HALVES, kind), _value(_OTHERS, kind), _WIDE.astype(np.float64)
    # Sums and products of so few bits are exact in double, or round to float as they should.
    for result, wanted in zip(found, (x + z, x - z, x * y + z), strict=True):
        told = np.array(result, np.uint32).view(np.float32)
        np.testing.assert_array_equal(told, wanted.astype(np.float32))


@pytest.mark.parametrize("at", [0, 32], ids=["low", "high"])
def test_pairs_of_floats(at: int) -> None:
    """`.f32x2`, in registers of 64 bits (PTX ISA 8.6, "add", "mul", "fma")."""
    tries = [
        Try("add.rn.f32x2", 64, (64, 64)),
        Try("mul.rn.f32x2", 64, (64, 64)),
        Try("fma.rn.f32x2", 64, (64, 64, 64)),
    ]
    x = np.array([1.5, -2.0, 0.25, 1e-3], np.float32)
    y = np.array([3.0, 0.5, -8.0, 1e3], np.float32)
    a, b = ((v.view(np.uint32).astype(np.uint64) << np.uint64(at)).tolist() for v in (x, y))
    found = Unit(tries, "sm_100").run([[a, b], [a, b], [a, b, a]])
    fused = (x.astype(np.float64) * y + x).astype(np.float32)
    for result, wanted in zip(found, (x + y, x * y, fused), strict=True):
        told = (np.array(result, np.uint64) >> np.uint64(at)).astype(np.uint32).view(np.float32)
        np.testing.assert_array_equal(told, wanted)
