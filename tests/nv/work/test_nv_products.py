"""Products on the virtual NVIDIA chips, from tensors to the asynchronous units: what the strict
model of the multiprocessors makes of the kernels that the compiler writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.clocks import Looks
from tests.support.nvidia.nv_machine import opened, powered
from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.compiler.dtype import bfloat16, float32, int32
from ugpu.compiler.runtime.runtime import kernel_log
from ugpu.compiler.search.tune import tuning
from ugpu.hcq.device.device import Device

Array = NDArray[Any]
CHIPS = ("gh100", "ga102", "gb202")


@pytest.fixture(scope="module", params=CHIPS)
def gpu(request: pytest.FixtureRequest) -> Iterator[Device]:
    with hcq.open(f"virtual:{request.param}") as device:
        yield device


@pytest.fixture(scope="module")
def hopper() -> Iterator[Device]:
    """Kernels of ours lack no fence: nothing that boards forgive is found."""
    with powered() as machine, opened(machine) as device:
        yield device
        assert machine.violations == []


def tensors(gpu: Device, kind: str, *arrays: Array, turned: bool = False) -> list[Tensor]:
    """Small integers of a kind, stored as they are or transposed."""
    types = {"float16": np.float16, "int8": np.int8}
    made = []
    for array in arrays:
        stored = np.ascontiguousarray(array.T if turned else array)
        tensor = Tensor(stored.astype(types.get(kind, np.float32)), device=gpu)
        if kind == "bfloat16":
            tensor = tensor.cast(bfloat16).contiguous()
            tensor.realize()
        made.append(tensor.permute(1, 0) if turned else tensor)
    return made


def wide(kind: str, left: Tensor, right: Tensor) -> Tensor:
    if kind == "tf32":
        return left.tf32() @ right.tf32()
    total = int32 if kind == "int8" else float32
    return left.cast(total) @ right.cast(total)


SHAPES = [(128, 192, 136), (100, 72, 90), (65, 130, 70), (40, 100, 33)]


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "tf32", "int8"])
@pytest.mark.parametrize("turned", [False, True])
def test_products_of_any_size(gpu: Device, kind: str, turned: bool) -> None:
    random = np.random.default_rng(5)
    # all shapes where layouts differ; one where the code is the same as elsewhere
    shapes = SHAPES if gpu.target.cpu == "sm_90a" and kind != "int8" else SHAPES[1:2]
    for rows, depth, columns in shapes:
        left = random.integers(-4, 5, (rows, depth))
        right = random.integers(-4, 5, (depth, columns))
        found = wide(kind, *tensors(gpu, kind, left, right, turned=turned)).numpy()
        np.testing.assert_array_equal(found, left @ right)


def test_rings_longer_than_the_depth(hopper: Device) -> None:
    """The largest tile, and depths of fewer slices than stages, as many, and many more."""
    random = np.random.default_rng(6)
    for depth in (64, 128, 192, 1024):
        left = random.integers(-4, 5, (128, depth))
        right = random.integers(-4, 5, (depth, 256))
        found = wide("float16", *tensors(hopper, "float16", left, right)).numpy()
        np.testing.assert_array_equal(found, left @ right)


FUSED: dict[str, tuple[Callable[..., Tensor], Callable[..., Array]]] = {
    "bias and relu": (
        lambda a, b, c: (wide("float16", a, b) + c).relu(),
        lambda a, b, c: np.maximum(a @ b + c, 0),
    ),
    "sum of products": (
        lambda a, b, c: wide("float16", a, b) * 0.5 + wide("float16", a, b),
        lambda a, b, c: (a @ b) * 1.5,
    ),
    "scaled factor": (
        lambda a, b, c: wide("float16", a * 2, b),
        lambda a, b, c: 2 * (a @ b),
    ),
    "half result": (
        lambda a, b, c: a @ b,
        lambda a, b, c: (a @ b).astype(np.float16),
    ),
    "padded": (
        lambda a, b, c: wide("float16", a.pad(((0, 0), (8, 8))), b.pad(((8, 8), (0, 0)))),
        lambda a, b, c: a @ b,
    ),
    "part": (
        lambda a, b, c: wide("float16", a[8:72, 16:], b[16:]),
        lambda a, b, c: a[8:72, 16:] @ b[16:],
    ),
}


@pytest.mark.parametrize("name", sorted(FUSED))
def test_what_is_fused(hopper: Device, name: str) -> None:
    ours, numpy = FUSED[name]
    random = np.random.default_rng(7)
    left = random.integers(-3, 4, (80, 128)).astype(np.float16)
    right = random.integers(-3, 4, (128, 72)).astype(np.float16)
    bias = random.integers(-3, 4, 72).astype(np.float32)
    found = ours(*(Tensor(array, device=hopper) for array in (left, right, bias))).numpy()
    given = (left.astype(np.float32), right.astype(np.float32), bias)
    np.testing.assert_array_equal(found, numpy(*given))


def test_batches_and_heads(hopper: Device) -> None:
    random = np.random.default_rng(8)
    left = random.integers(-3, 4, (2, 3, 70, 64)).astype(np.float16)
    right = random.integers(-3, 4, (2, 3, 64, 72)).astype(np.float16)
    found = wide("float16", Tensor(left, device=hopper), Tensor(right, device=hopper)).numpy()
    np.testing.assert_array_equal(found, left.astype(np.float32) @ right.astype(np.float32))


def test_real_numbers_are_near(hopper: Device) -> None:
    random = np.random.default_rng(9)
    left, right = (random.normal(size=(256, 256)).astype(np.float32) for _ in range(2))
    for kind, error in (("float16", 3e-2), ("bfloat16", 2e-1), ("tf32", 3e-2)):
        found = wide(kind, *tensors(hopper, kind, left, right)).numpy()
        np.testing.assert_allclose(found, left @ right, atol=error)


def test_the_device_takes_its_own_architecture(hopper: Device) -> None:
    assert hopper.target.cpu == "sm_90a" and hopper.target.matrix == "sm_90a"
    left = np.ones((256, 64), np.float16)
    with kernel_log() as kernels:
        (Tensor(left, device=hopper) @ Tensor(left.T.copy(), device=hopper)).numpy()
    assert kernels


@pytest.mark.slow
def test_a_search_tries_rings(hopper: Device) -> None:
    random = np.random.default_rng(10)
    left, right = (random.normal(size=(200, 200)).astype(np.float16) for _ in range(2))
    with tuning(beam=2, budget_s=48, clock=Looks()) as report:
        (Tensor(left, device=hopper) @ Tensor(right, device=hopper)).numpy()
    text = "\n".join(line for kernel in report.kernels for line in kernel.details())
    assert "ringtiles unit=sm_90a.float16" in text and "another result" not in text
