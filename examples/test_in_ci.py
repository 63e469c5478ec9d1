"""Tests of GPU code that need no GPU: the same test on several virtual devices.

usage: pytest examples/test_in_ci.py
A real card is one more name: UGPU_TEST_DEVICES="pci:0000:03:00.0" pytest examples/test_in_ci.py
"""

import os
from collections.abc import Iterator

import numpy as np
import pytest

import ugpu

NAMES = os.environ.get("UGPU_TEST_DEVICES", "cpu virtual:navi31 virtual:gh100").split()


@pytest.fixture(params=NAMES, scope="module")
def gpu(request: pytest.FixtureRequest) -> Iterator[ugpu.Device]:
    with ugpu.open(request.param) as device:
        yield device


@pytest.fixture(autouse=True)
def healthy(gpu: ugpu.Device) -> Iterator[None]:
    """A test that leaves the device in a fault fails itself; the next one starts on a good one."""
    yield
    try:
        gpu.synchronize()
    except ugpu.UgpuError as error:
        gpu.reset()
        pytest.fail(f"the test left a fault behind: {error}")


def softmax(x: ugpu.Tensor) -> ugpu.Tensor:
    """The code under test."""
    exponentials = (x - x.max(axis=-1, keepdims=True)).exp()
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("shape", [(1, 7), (33, 65)])
def test_rows_add_up_to_one(gpu: ugpu.Device, shape: tuple[int, int]) -> None:
    x = np.random.default_rng(1).standard_normal(shape, dtype="f4") * 20
    rows = softmax(ugpu.Tensor(x, device=gpu)).numpy().sum(axis=-1)
    assert np.allclose(rows, 1, atol=1e-5)
