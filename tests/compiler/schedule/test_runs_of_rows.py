"""Kernels that read different rows of an array are one kernel, given another address."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.compiler.compiler_devices import device_fixture
from ugpu.compiler import Tensor, jit
from ugpu.compiler.runtime.kernels.programs import KernelRecord, listeners
from ugpu.hcq.device.device import Device

Array = np.ndarray[Any, np.dtype[np.float32]]

device = device_fixture("cpu", "virtual:navi31", "virtual:ga102", poison=False)
ROWS = 12


@pytest.fixture
def prepared(device: Device) -> Iterator[list[KernelRecord]]:
    """The kernels that are prepared during a test."""
    found: list[KernelRecord] = []
    listeners.append(found.append)
    yield found
    listeners.remove(found.append)


def floats(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def test_one_kernel_for_the_rows_of_a_stored_array(
    device: Device, prepared: list[KernelRecord]
) -> None:
    """As separate runs, of which later ones are scripts of a recipe."""
    array = floats(ROWS, 64)
    x = Tensor(array, device=device).realize()
    for _ in range(3):
        found = [(x[row] * 3.5 - 1.25).numpy() for row in range(ROWS)]
        assert np.array_equal(found, array * np.float32(3.5) - np.float32(1.25))
    assert len(prepared) == 1


def test_scripts_read_the_array_of_each_run(device: Device) -> None:
    for offset in range(3):
        array = floats(ROWS, 64) + np.float32(offset)
        x = Tensor(array, device=device).realize()
        for row in (7, 2):
            found = (x[row] * x[row]).sum()
            assert float(found.item()) == pytest.approx(float((array[row] ** 2).sum()), 1e-5)


def test_one_kernel_for_the_steps_of_a_network(
    device: Device, prepared: list[KernelRecord]
) -> None:
    """Rows of a value of the same run, recorded, replayed with other arguments and weights."""
    back = Tensor(floats(64, 64) / np.float32(8), device=device).realize()

    def steps(x: Tensor) -> Tensor:
        given = (x @ back).contiguous()
        hidden = Tensor.zeros(1, 64, device=device)
        for row in range(ROWS):
            hidden = (given[row : row + 1] + hidden @ back).tanh()
        return hidden

    recorded = jit(steps)
    for seed in range(4):
        array = np.random.default_rng(seed).standard_normal((ROWS, 64)).astype(np.float32)
        if seed == 3:
            back.assign(back * 0.5)
        weights = back.numpy()
        wanted = np.zeros((1, 64), np.float32)
        for row in array @ weights:
            wanted = np.tanh(row + wanted @ weights)
        found = recorded(Tensor(array, device=device).realize()).numpy()
        assert np.abs(found - wanted).max() < 1e-5
    names = [each.name for each in prepared if "tanh" in each.name]
    assert len(names) == 2  # the first step multiplies zeros


def test_rows_of_an_argument_of_a_recorded_function(device: Device) -> None:
    recorded = jit(lambda x, y: (x[3] + y[1:3].sum(0), x[:2] * y[5:7]))
    for seed in range(4):
        one, two = np.random.default_rng(seed).standard_normal((2, ROWS, 128)).astype(np.float32)
        found = recorded(*(Tensor(each, device=device).realize() for each in (one, two)))
        assert np.allclose(found[0].numpy(), one[3] + two[1:3].sum(0), atol=1e-6)
        assert np.array_equal(found[1].numpy(), one[:2] * two[5:7])


def test_what_is_read_in_several_ways(device: Device, prepared: list[KernelRecord]) -> None:
    """Two runs of one array, a run and the whole, runs that begin at no multiple of 256 bytes."""
    array, odd = floats(ROWS, 64), floats(ROWS, 65)
    x, y = (Tensor(each, device=device).realize() for each in (array, odd))
    assert np.array_equal((x[2] * x[5]).numpy(), array[2] * array[5])
    assert np.array_equal((x[4] * x).numpy(), array[4] * array)
    for row in (0, 1, 4):
        assert np.array_equal((y[row] * 2).numpy(), odd[row] * 2)
        assert np.array_equal((x.reshape(4, 3, 64)[row % 4, 2] - 1).numpy(),
                              array.reshape(4, 3, 64)[row % 4, 2] - 1)  # fmt: skip


def test_rows_that_are_written_while_others_are_read(device: Device) -> None:
    array = floats(ROWS, 64)
    x = Tensor(array, device=device).realize()
    for _ in range(3):
        x[1:4] = x[5:8] * 2
        array[1:4] = array[5:8] * 2
        x[2] = x[1] + x[2]
        array[2] = array[1] + array[2]
        x[4:] = x[3:-1]
        array[4:] = array[3:-1].copy()
        assert np.array_equal(x.numpy(), array)
