"""Graphs that differ only in their Python numbers: no kernel is compiled for a third number."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ugpu import hcq
from ugpu.compiler import Tensor, jit
from ugpu.compiler.dtype import as_dtype
from ugpu.compiler.runtime.runtime import kernel_log, runtime_of, use_cache
from ugpu.hcq.device.device import Device

Work = Callable[[Tensor, float], Tensor]

WORKS: dict[str, Work] = {
    "scale": lambda x, c: x * c,
    "several": lambda x, c: (x * c + (c + 1)).maximum(c / 3) - 1.0,
    "compare": lambda x, c: (x < c).where(c, x),
    "reduced": lambda x, c: (x * c).sum(0),
    "divided": lambda x, c: x / c,
    "one element": lambda x, c: x[0, :1] * c,
    "beside a product": lambda x, c: x @ x.transpose(0, 1) * c,
}
NUMBERS = (0.37, 1.75, -0.0625, 3.0e-5, 1.0)


def fresh(device: Device) -> None:
    use_cache(device, None)


@pytest.mark.parametrize("name", sorted(WORKS))
@pytest.mark.parametrize("where", ["cpu", "virtual:navi31", "virtual:gh100"])
def test_a_third_number_compiles_nothing(name: str, where: str) -> None:
    work = WORKS[name]
    values = np.linspace(-2, 2, 33 * 7, dtype="f4").reshape(33, 7)
    with hcq.open(where) as device:
        alone = []
        for number in NUMBERS:  # each by kernels that hold the number
            fresh(device)
            alone.append(work(Tensor(values, device=device), number).numpy())
        fresh(device)
        counts = []
        with kernel_log() as kernels:
            for number, wanted in zip(NUMBERS, alone, strict=True):
                found = work(Tensor(values, device=device), number).numpy()
                assert np.array_equal(found, wanted), number
                counts.append(len(kernels))
        assert counts[0] < counts[1] == counts[2] == counts[3]


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16", "int8", "uint16", "int64"])
def test_numbers_of_every_type(cpu: Device, kind: str) -> None:
    dtype = as_dtype(kind)
    x = Tensor(np.arange(1, 20), device=cpu).cast(dtype).realize()
    numbers = (3, 5, 7, 100) if dtype.is_integer else (1e-3, 5.5, 7.123, 1e6)
    for number in numbers:
        found = (x * number + number).numpy()
        runtime_of(cpu).opened = type(runtime_of(cpu).opened)()  # kernels that hold the number
        held = ((x * number) + number).contiguous().numpy()
        assert np.array_equal(found, held, equal_nan=True)


@settings(max_examples=30)
@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=2, max_size=5), st.integers(1, 9))
def test_only_numbers_that_differ_leave_the_kernels(numbers: list[float], size: int) -> None:
    with hcq.open("cpu", threads=1) as device:
        fresh(device)
        values = np.arange(size, dtype="f4")
        x = Tensor(values, device=device)
        for number in numbers:
            found = (x * number - 2.5).numpy()
            wanted = values * np.float32(number) - np.float32(2.5)
            assert np.array_equal(found, wanted)


def test_positions_stay_in_the_kernels(cpu: Device) -> None:
    fresh(cpu)
    x = Tensor(np.linspace(0.1, 2, 12, dtype="f4"), device=cpu)
    with kernel_log() as kernels:
        for count in (1, 2, 3):
            below = (Tensor.arange(12, device=cpu) < count).where(x, 0.0)
            assert np.array_equal(below.numpy(), np.where(np.arange(12) < count, x.numpy(), 0))
    assert len(kernels) == 3


def test_what_others_hold_of_the_graph_stays_right(cpu: Device) -> None:
    fresh(cpu)
    x = Tensor(np.arange(6, dtype="f4"), device=cpu)
    for number in (2.0, 3.0, 4.0):
        scaled = x * number  # its node gets another source while `total` is computed
        total = (scaled + 1).sum()
        assert total.item() == 15 * number + 6
        assert np.array_equal(scaled.numpy(), np.arange(6) * number)


def test_a_recorded_function_keeps_its_numbers(cpu: Device) -> None:
    fresh(cpu)
    x = Tensor(np.arange(6, dtype="f4"), device=cpu)
    for number in (2.0, 3.0, 4.0):
        step = jit(lambda x, number=number: x * number)
        for _ in range(3):
            assert np.array_equal(step(x).numpy(), np.arange(6) * number)


def test_a_number_that_cannot_be_put_into_memory_changes_nothing(
    cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh(cpu)
    runtime = runtime_of(cpu)
    x = Tensor(np.arange(6, dtype="f4"), device=cpu)
    (x * 2.5).realize()
    scaled = x * 3.5

    def fail(size: int) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(runtime.pool, "take", fail)
        with pytest.raises(MemoryError):
            scaled.realize()
    assert np.array_equal(scaled.numpy(), np.arange(6) * 3.5)
