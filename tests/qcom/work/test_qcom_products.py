"""Integer products and divisions by constants on the virtual Adreno GPUs.

A constant below 65,536 has an upper half of zeros, so that Mesa leaves out one of the two cross
products and the other's operands show in which order `madsh.m16` takes them.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.adreno.mesa import needs_mesa
from ugpu import hcq
from ugpu.compiler import Tensor

SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("a660", "a750", "a630+msm")]
DEVICES = ("a630", "a740", *SLOW)
SIGNED = np.arange(-60, 60, dtype=np.int32)
WIDE = np.array([0, 1, 0xFFFF, 0x10000, 0x10001, 0x12345678, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF],
                np.uint32)  # fmt: skip


@needs_mesa
@pytest.mark.parametrize("name", DEVICES)
def test_products_and_quotients_by_constants(name: str) -> None:
    with hcq.open(f"virtual:{name}") as device:
        x, y = Tensor(SIGNED, device=device), Tensor(WIDE, device=device)
        for found, expected in (
            (x * 3, SIGNED * 3), (x // 7, SIGNED // 7), (x % 7, SIGNED % 7),
            (y * 7, WIDE * np.uint32(7)), (y * 0x10000, WIDE * np.uint32(0x10000)),
            (y // 7, WIDE // np.uint32(7)), (y % 7, WIDE % np.uint32(7)),
        ):  # fmt: skip
            np.testing.assert_array_equal(found.numpy(), expected)
