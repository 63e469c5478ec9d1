"""Values that an element rarely needs: lines with and without such elements give the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from ugpu.compiler import Tensor
from ugpu.hcq.device.device import Device

SHORT = 63  # elements of a line that has no loop without rare values


def _computed(x: np.ndarray, device: Device) -> np.ndarray:
    tensor = Tensor(x, device=device)
    return (tensor.sin() + (tensor * 2.0).cos()).numpy()


@pytest.mark.parametrize("shape", [(64,), (1000,), (16384 + 70,), (3, 65), (2, 16390)])
@pytest.mark.parametrize("huge", [0, 1, 7])
def test_as_in_short_lines(cpu: Device, shape: tuple[int, ...], huge: int) -> None:
    rng = np.random.default_rng(huge)
    x = (rng.standard_normal(shape) * 1000).astype(np.float32)
    flat = x.reshape(-1)
    flat[:4] = 0.0, -0.0, np.nan, 131072.0
    places = rng.choice(len(flat) - 4, huge, replace=False) + 4
    flat[places] = [-np.inf, 1e30, -131073.0, np.inf, 3e38, 1e6, -4e9][:huge]
    whole = _computed(x, cpu).reshape(-1)
    for start in (*range(0, len(flat), max(SHORT, len(flat) // 4)), len(flat) - SHORT):
        part = flat[start : start + SHORT]
        wanted = np.resize(part, SHORT)  # of one size, so that one kernel computes all
        found = _computed(wanted, cpu)[: len(part)]
        np.testing.assert_array_equal(whole[start : start + SHORT], found)
        signs = np.signbit(found) == np.signbit(whole[start : start + SHORT])
        assert (signs | np.isnan(found)).all()
    assert np.isnan(whole[2]) and np.isfinite(whole[3])
