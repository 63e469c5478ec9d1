"""Random numbers: the published algorithm, the same on every device, in the right proportions."""

from __future__ import annotations

import numpy as np
import pytest

import hcq
from compiler import Tensor, jit
from compiler.methods.randomness import Generator
from compiler.runtime import kernel_log, use_cache
from hcq.device import Device
from hcq.errors import BadArgument

MASK = (1 << 64) - 1


def squares(counter: int, key: int) -> int:
    """As in arXiv:2004.06278, section 4, on Python's integers."""
    x = y = counter * key & MASK
    z = y + key & MASK
    for added in (y, z, y):
        x = x * x + added & MASK
        x = (x >> 32 | x << 32) & MASK
    return (x * x + z & MASK) >> 32


@pytest.mark.parametrize("name", ["cpu", "virtual:navi31", "virtual:ga102"])
def test_the_published_numbers_on_every_device(name: str) -> None:
    expected = Generator()
    expected.seed(11)
    first, key = (int(number) for number in expected.take(40))
    bits = [squares(first + place, key) >> 8 for place in range(40)]
    with hcq.open(name) as device:
        use_cache(device, None)
        Tensor.manual_seed(11)
        found = Tensor.rand(5, 8, device=device).numpy()
    assert (found.reshape(-1) * 2**24).astype(np.int64).tolist() == bits


def test_each_number_is_given_once(cpu: Device) -> None:
    Tensor.manual_seed(5)
    apart = [Tensor.rand(100, device=cpu).numpy() for _ in range(3)]
    Tensor.manual_seed(5)
    together = Tensor.rand(300, device=cpu).numpy()
    assert np.array_equal(np.concatenate(apart), together)
    assert len(np.unique(together)) > 290
    Tensor.manual_seed(6)
    assert not np.array_equal(Tensor.rand(300, device=cpu).numpy(), together)
    with kernel_log() as kernels:
        Tensor.rand(300, device=cpu).realize()
    assert not kernels  # the seed and the place are data


def test_proportions(cpu: Device) -> None:
    Tensor.manual_seed(1)
    even = Tensor.rand(200_000, device=cpu).numpy()
    assert even.min() >= 0 and even.max() < 1
    counts = np.histogram(even, 20, (0, 1))[0]
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 45  # chi^2 of 19: 43.8 is one in a thousand
    assert abs(np.corrcoef(even[:-1], even[1:])[0, 1]) < 0.01
    bell = Tensor.randn(200_000, device=cpu).numpy().astype(np.float64)
    assert abs(bell.mean()) < 0.01 and abs(bell.std() - 1) < 0.01
    assert abs((bell**3).mean()) < 0.03 and abs((bell**4).mean() - 3) < 0.1
    dice = Tensor.randint(60_000, low=1, high=7, device=cpu).numpy()
    values, counts = np.unique(dice, return_counts=True)
    assert values.tolist() == [1, 2, 3, 4, 5, 6] and abs(counts - 10_000).max() < 500
    moved = Tensor.normal(50_000, mean=3, std=0.5, device=cpu).numpy()
    assert abs(moved.mean() - 3) < 0.02 and abs(moved.std() - 0.5) < 0.02
    spread = Tensor.uniform(50_000, low=-2, high=2, device=cpu).numpy()
    assert -2 <= spread.min() < -1.9 and 1.9 < spread.max() < 2


def test_shapes_and_refusals(cpu: Device) -> None:
    assert Tensor.rand(device=cpu).shape == () and Tensor.randn(0, 3, device=cpu).numpy().size == 0
    assert sorted(Tensor.randperm(50, device=cpu).tolist()) == list(range(50))
    assert Tensor.randn(4, device=cpu, dtype="float16").dtype.name == "float16"
    with pytest.raises(BadArgument, match="randint: from 3 to 3"):
        Tensor.randint(2, low=3, high=3, device=cpu)
    noisy = jit(lambda x: x + Tensor.rand(3, device=cpu))
    with pytest.raises(BadArgument, match="would be copied"):
        for _ in range(3):
            noisy(Tensor([1.0, 2.0, 3.0], device=cpu))
