"""Random numbers: the published algorithm, the same on every device, in the right proportions."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.compiler.compiler_devices import device_fixture
from ugpu import hcq
from ugpu.compiler import Tensor, function, jit
from ugpu.compiler.runtime.generator import Generator
from ugpu.compiler.runtime.runtime import kernel_log, use_cache
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, NotSupported

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
    with pytest.raises(BadArgument, match="randint: high must exceed low"):
        Tensor.randint(2, low=3, high=3, device=cpu)


# ---- in recorded functions ---------------------------------------------------------------------

sources = device_fixture("cpu", "virtual:navi31", "virtual:ga102")


def step(x: Tensor) -> tuple[Tensor, Tensor]:
    """Several numbers, of which some are looked at on the way."""
    noise = Tensor.rand(*x.shape, device=x.device).realize()
    again = Tensor.randn(3, device=x.device)
    return x + noise * 2, again + Tensor.randint(3, high=100, device=x.device)


def test_a_recorded_function_gets_the_numbers_it_would_get(sources: Device) -> None:
    x = Tensor(np.zeros((2, 5), np.float32), device=sources)
    Tensor.manual_seed(3)
    plain = [[each.numpy() for each in step(x)] for _ in range(6)]
    after = Tensor.rand(4, device=sources).numpy()
    Tensor.manual_seed(3)
    recorded = jit(step)
    replayed = [recorded(x) for _ in range(6)]  # results are read when all are under way
    assert recorded.kernels
    for wanted, found in zip(plain, replayed, strict=True):
        assert all(np.array_equal(a, b.numpy()) for a, b in zip(wanted, found, strict=True))
    assert np.array_equal(Tensor.rand(4, device=sources).numpy(), after)
    Tensor.manual_seed(3)  # between replays
    assert np.array_equal(recorded(x)[0].numpy(), plain[0][0])
    recorded.reset()
    for wanted in plain[1:4]:
        assert np.array_equal(recorded(x)[0].numpy(), wanted[0])


def test_numbers_inside_nested_functions(cpu: Device) -> None:
    """A jit in a jit, and calls of a nested function, which share their kernels."""
    inner = jit(lambda x: x + Tensor.rand(8, device=x.device))
    noisy = function(lambda x: (x * 0.5 + Tensor.rand(8, device=x.device)).contiguous())

    def network(x: Tensor) -> Tensor:
        for _ in range(20):  # more than one piece of memory for the places
            x = noisy(x)
        return inner(x)

    x = Tensor(np.ones(8, np.float32), device=cpu)
    Tensor.manual_seed(8)
    plain = [network(x).numpy() for _ in range(4)]
    outer = jit(network)
    Tensor.manual_seed(8)
    assert all(np.array_equal(outer(x).numpy(), wanted) for wanted in plain)
    Tensor.manual_seed(8)
    with kernel_log() as kernels:
        again = jit(network)
        assert all(np.array_equal(again(x).numpy(), wanted) for wanted in plain)
    assert not kernels


def test_numbers_that_nothing_reads_are_taken_too(cpu: Device) -> None:
    def wasteful(x: Tensor) -> Tensor:
        Tensor.rand(5, device=cpu)
        return x + 1

    recorded = jit(wasteful)
    x = Tensor([1.0], device=cpu)
    Tensor.manual_seed(2)
    for _ in range(4):
        recorded(x)
    found = Tensor.rand(3, device=cpu).numpy()
    Tensor.manual_seed(2)
    assert np.array_equal(Tensor.rand(23, device=cpu).numpy()[20:], found)


def test_failing_to_record_takes_no_numbers_twice(cpu: Device) -> None:
    calls = 0

    def fails_once(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        noise = Tensor.rand(4, device=cpu)
        if calls == 2:
            raise ValueError("now")
        return x + noise

    recorded, x = jit(fails_once), Tensor(np.zeros(4, np.float32), device=cpu)
    Tensor.manual_seed(9)
    found = [recorded(x).numpy()]
    with pytest.raises(ValueError, match="now"):
        recorded(x)
    found += [recorded(x).numpy() for _ in range(3)]
    Tensor.manual_seed(9)
    assert np.array_equal(np.concatenate(found), Tensor.rand(16, device=cpu).numpy())


def test_what_would_repeat_is_refused(cpu: Device) -> None:
    def seeded(x: Tensor) -> Tensor:
        Tensor.manual_seed(1)
        return x + Tensor.rand(3, device=cpu)

    with pytest.raises(BadArgument, match="set it outside"):
        jit(seeded)(Tensor([1.0, 2.0, 3.0], device=cpu))
    with pytest.raises(NotSupported, match="use @jit"), cpu.capture():
        Tensor.rand(3, device=cpu).realize()
