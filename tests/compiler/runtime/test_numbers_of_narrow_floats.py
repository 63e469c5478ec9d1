"""A Python number beside float16 or bfloat16 is the same number, however often its graph came."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.adreno.mesa import MESA
from ugpu import hcq
from ugpu.compiler import Tensor, jit
from ugpu.compiler import dtype as dtypes
from ugpu.compiler.dtype import DType, bfloat16, float16
from ugpu.compiler.graph.series import HELD_FROM, known
from ugpu.compiler.methods import core
from ugpu.compiler.runtime.runtime import use_cache
from ugpu.hcq.device.device import Device

GPUS = ("virtual:navi31", "virtual:gh100", *(("virtual:a740",) if MESA else ()))
NUMBERS = (0.1, 0.3, -1.7, 2.6, 1e-3, 1.0007, 3.3, -0.55, 7.7, 0.9, 1 / 3, math.inf, 1e9, 4097)
ELEMENTS = (0.1, 0.3, -1.7, 2.6, 1e-3, 1.0, 3.3, -0.55, 0.0, -0.0, 100.0, math.inf, math.nan, 1 / 3)
assert len(NUMBERS) > HELD_FROM

# PyTorch's kernels for GPUs read the number in float32 for these (ATen/native/cuda/Loops.cuh,
# opmath_gpu_kernel_with_scalars), and in the tensor's type for all others.
KEPT: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, n: x + n,
    "from": lambda x, n: n - x,
    "mul": lambda x, n: x * n,
    "div": lambda x, n: x / n,
    "over": lambda x, n: n / x,
}
ROUNDED: dict[str, Callable[[Any, Any], Any]] = {
    "less": lambda x, n: x < n,
    "equal": lambda x, n: x == n,
    "remainder": lambda x, n: x % n + 0.0,  # of zeros NumPy chooses another sign
}


@pytest.fixture(params=["cpu", *GPUS])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    known.clear()
    monkeypatch.setattr(core, "_recipes", {})
    with hcq.open(request.param) as opened:
        use_cache(opened, None)
        yield opened


def narrowed(values: Any, kind: DType) -> Any:
    """float32 values as the narrow type has them."""
    return dtypes.decode(dtypes.encode(np.asarray(values, np.float32), kind), kind).astype("f4")


def alike(found: Tensor, wanted: Any, kind: DType) -> bool:
    if found.dtype is dtypes.bool_:
        return bool(np.array_equal(found.numpy(), wanted))
    stored, wanted = found.cast("float32").numpy(), narrowed(wanted, kind)
    same = (stored == wanted) & (np.signbit(stored) == np.signbit(wanted))
    return bool((same | (np.isnan(stored) & np.isnan(wanted))).all())


@pytest.mark.parametrize("kind", [float16, bfloat16])
def test_a_number_is_rounded_alike_whenever_it_comes(device: Device, kind: DType) -> None:
    elements = narrowed(ELEMENTS, kind)
    x = Tensor(elements, device=device, dtype=kind).realize()
    few = NUMBERS if device.name == "cpu" else NUMBERS[:3]
    wrong = []
    with np.errstate(all="ignore"):
        for kept, works in ((True, KEPT), (False, ROUNDED)):
            for name, work in works.items():
                for number in few:
                    exact = np.float32(number) if kept else narrowed(number, kind)
                    if not alike(work(x, number), work(elements, exact), kind):
                        wrong.append((name, number))
    assert not wrong


@pytest.mark.parametrize("kind", [float16, bfloat16])
def test_recorded_numbers_are_those_of_eager_works(device: Device, kind: DType) -> None:
    x = Tensor(narrowed(ELEMENTS, kind), device=device, dtype=kind).realize()

    def works(x: Tensor, n: float) -> list[Tensor]:
        chosen = (x > 0).where(x, n)
        return [x + n, x // n, x.clamp(min=n), chosen * n, x.full_like(n) * x, x.abs() ** n]

    for number in NUMBERS if device.name == "cpu" else NUMBERS[1:3]:
        recorded = jit(lambda x, n=number: works(x, n))
        for one, two in zip(works(x, number), recorded(x), strict=True):
            assert one.numpy().tobytes() == two.numpy().tobytes(), number


def test_a_filled_tensor_has_elements_of_its_type(device: Device) -> None:
    """Not of float32: another operation cannot tell it from a stored one."""
    x = Tensor(np.ones(4, np.float16), device=device).realize()
    third = float(np.float16(1 / 3))
    filled = x.full_like(1 / 3)
    for tensor in (filled, filled.realize()):
        assert (tensor.cast("float32") + x.cast("float32")).tolist() == [third + 1] * 4
        assert (tensor * 3).tolist() == [float(np.float16(third * 3))] * 4


@pytest.mark.parametrize("kind", [float16, bfloat16])
def test_gradients_are_those_of_the_number(kind: DType) -> None:
    """Also those of operations that have it by value."""
    known.clear()
    elements = narrowed([1, 3, 5, 7], kind)
    with hcq.open("cpu") as device:
        leaf = Tensor(elements, device=device, dtype=kind).requires_grad_()
        for number in NUMBERS[:-3] * 2:
            leaf.grad = None
            (leaf * number / 3).sum().backward()
            third = narrowed(np.float32(1) / np.float32(3), kind)
            assert leaf.grad is not None
            assert leaf.grad.dtype is kind
            wanted = narrowed(third * np.float32(number), kind)
            assert leaf.grad.cast("float32").tolist() == [wanted.item()] * 4, number
