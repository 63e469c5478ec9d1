"""Minimum and maximum with a constant: of zeros and NaN, and in how many instructions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.compiler.compiler_cases import GFX1100, buffer, disassembly, kernels_of
from tests.support.compiler.compiler_devices import device_fixture
from ugpu.compiler import Tensor
from ugpu.compiler.dtype import float32
from ugpu.compiler.graph import elements
from ugpu.hcq.device.device import Device

device = device_fixture("cpu", "virtual:navi31", "virtual:navi48")
SPECIAL = np.array([np.nan, -np.inf, np.inf, -0.0, 0.0, 6, 7, -1, 1e-42, -1e-42], np.float32)


@pytest.mark.parametrize("constant", [0.0, -0.0, 6.0, -1e-42, np.inf, -np.inf, np.nan])
def test_zeros_have_an_order_and_nan_stays(device: Device, constant: float) -> None:
    x = Tensor(SPECIAL, device=device)
    least, most = x.minimum(constant).numpy(), x.maximum(constant).numpy()
    bounded = x.maximum(constant).minimum(6.0).numpy()
    for number, low, high, both in zip(SPECIAL, least, most, bounded, strict=True):
        if np.isnan(number) or np.isnan(constant):
            assert np.isnan([low, high, both]).all()
            continue
        below, above = sorted((number, np.float32(constant)), key=_order)
        assert _order(low) == _order(below) and _order(high) == _order(above)
        assert _order(both) == min(_order(above), _order(np.float32(6)))


def _order(number: np.float32) -> tuple[float, bool]:
    """-0 comes before 0."""
    return float(number), not np.signbit(number)


def test_a_bound_takes_two_instructions_or_one() -> None:
    """Gfx11 has no maximum that keeps NaN, gfx12 has."""
    zero = elements.full(0.0, float32, (64,))
    x = elements.elementwise("max", float32, buffer(64, dtype=float32), zero)
    (kernel,) = kernels_of(x, GFX1100)
    assert "v_max" not in disassembly(kernel) and "v_cndmask_b32" in disassembly(kernel)
    gfx1200 = replace(GFX1100, name="gfx1200", cpu="gfx1200", matrix="gfx12")
    newer = disassembly(kernel, gfx1200)
    assert "v_maximum_f32" in newer and "v_cndmask" not in newer
