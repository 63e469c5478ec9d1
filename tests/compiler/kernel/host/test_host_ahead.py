"""Lines of functions that take many instructions, whose elements are prefetched: results as of
short lines, which are not."""

from __future__ import annotations

import numpy as np
import pytest

from ugpu.compiler import Tensor
from ugpu.compiler.kernel.host.loops import AHEAD, FAR
from ugpu.hcq.device.device import Device

SHORT = FAR - 1


def _computed(x: np.ndarray, y: np.ndarray, device: Device) -> np.ndarray:
    return (Tensor(x, device=device) ** Tensor(y, device=device)).numpy()


@pytest.mark.parametrize(
    "shape", [(FAR,), (FAR + 1,), (2 * FAR + AHEAD + 15,), (16384 + 7,), (2, 16390)]
)
def test_as_in_short_lines(cpu: Device, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(shape))
    x = np.exp(rng.standard_normal(shape) * 9).astype(np.float32)
    y = rng.standard_normal(shape).astype(np.float32)
    whole = _computed(x, y, cpu).reshape(-1)
    assert np.isfinite(whole).any() and len(np.unique(whole)) > SHORT // 2
    for start in (*range(0, whole.size, SHORT), whole.size - SHORT):
        part = slice(start, start + SHORT)
        bases, exponents = (np.resize(each.reshape(-1)[part], SHORT) for each in (x, y))
        found = _computed(bases, exponents, cpu)  # of one size, so that one kernel computes all
        np.testing.assert_array_equal(whole[part], found[: whole[part].size])
