"""Numbers of the host: what a tensor is made from must fit its type; conversions never raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ugpu.compiler import Tensor
from ugpu.compiler.dtype import ALL, DType, highest, lowest
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument

INTEGERS = [each for each in ALL if each.is_integer]
Making = Callable[[Any, DType, Device], Tensor]


def fill(value: Any, kind: DType, device: Device) -> Tensor:
    tensor = Tensor.zeros(2, dtype=kind, device=device)
    tensor[0] = value
    return tensor[:1]


MAKINGS: dict[str, Making] = {
    "number": lambda v, kind, d: Tensor(v, dtype=kind, device=d).reshape(1),
    "list": lambda v, kind, d: Tensor([v], dtype=kind, device=d),
    "nested": lambda v, kind, d: Tensor([[0], [v]], dtype=kind, device=d)[1],
    "array": lambda v, kind, d: Tensor(np.array([v]), dtype=kind, device=d),
    "full": lambda v, kind, d: Tensor.full((1,), v, dtype=kind, device=d),
    "assignment": fill,
    "masked_fill": lambda v, kind, d: Tensor.zeros(1, dtype=kind, device=d).masked_fill(
        Tensor([True], device=d), v
    ),
    "pad": lambda v, kind, d: Tensor.zeros(1, dtype=kind, device=d).pad([(0, 1)], v)[1:],
    "index_fill": lambda v, kind, d: Tensor.zeros(1, dtype=kind, device=d).index_fill(
        0, np.array([0]), v
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MAKINGS)
def test_what_fits_and_what_does_not(cpu: Device, name: str) -> None:
    make = MAKINGS[name]
    for kind in INTEGERS:
        low, high = int(lowest(kind)), int(highest(kind))
        for value in (low, high, 0):
            assert make(value, kind, cpu).tolist() == [value]
        assert make(2.7, kind, cpu).tolist() == [2]
        beyond: list[Any] = [float("nan"), float("inf"), -float("inf"), 2.0**64, -(2.0**63) - 4096]
        beyond += [each for each in (low - 1, high + 1) if -(2**63) <= each < 2**64]
        beyond += [float(high) + 1.0, -1.5] if kind.kind == "u" else [float(high) + 1.0]
        for value in beyond:
            with pytest.raises(BadArgument, match=f"is out of range for {kind.name}"):
                make(value, kind, cpu)


@pytest.mark.parametrize("name", [each for each in MAKINGS if each != "nested"])
def test_floats_and_bools_take_any_number(cpu: Device, name: str) -> None:
    make = MAKINGS[name]
    half, single, bools = (next(each for each in ALL if each.name == name)
                           for name in ("float16", "float32", "bool"))  # fmt: skip
    assert make(70000.0, half, cpu).tolist() == [float("inf")]
    assert make(-1e39, single, cpu).tolist() == [-float("inf")]
    assert np.isnan(make(float("nan"), half, cpu).numpy()).all()
    if name != "index_fill":
        assert make(0.5, bools, cpu).tolist() == [True]


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (300, "int8", 44), (-1, "uint8", 255), (1 << 40, "int32", 0),
        (300.7, "uint8", 255), (-1.5, "uint8", 0), (float("nan"), "int32", 0),
        (1e10, "int32", 2**31 - 1),
        (-1e10, "int32", -(2**31)), (70000.0, "float16", float("inf")), (0.5, "bool", True),
        ((1 << 60) + (1 << 36) + 1, "float32", float((1 << 60) + (1 << 37))),
    ],
)  # fmt: skip
def test_conversions_of_stored_and_of_constant_tensors(
    cpu: Device, value: Any, kind: str, expected: Any
) -> None:
    for tensor in (Tensor([value], device=cpu), Tensor(value, device=cpu).reshape(1)):
        assert tensor.cast(kind).tolist() == [expected]
        assert tensor.to(kind).tolist() == [expected]
        assert Tensor(tensor, dtype=kind).tolist() == [expected]


def test_types_of_arrays_stay(cpu: Device) -> None:
    assert Tensor(np.array([200], np.uint8), device=cpu).tolist() == [200]
    assert Tensor([True, False], dtype="int8", device=cpu).tolist() == [1, 0]
    assert Tensor(np.zeros((0,), np.float64), dtype="int8", device=cpu).tolist() == []


@pytest.mark.parametrize("shape", [(8, 7), (16, 4), (16, 5), (4, 7)])
@pytest.mark.parametrize("largest", [0.035, 0.0, 0.5, -0.1])
def test_a_column_of_negative_numbers_and_a_small_one(
    cpu: Device, shape: tuple[int, int], largest: float
) -> None:
    """Maxima of floats are found among integers: LLVM's vectoriser of straight code mistook the
    sign of one element for that of the maximum, which made all results NaN."""
    x = np.full(shape, -0.2, np.float32)
    x[2] = largest
    raised = np.exp(x - x.max(0))
    found = Tensor(x, device=cpu).softmax(0).numpy()
    assert np.allclose(found, raised / raised.sum(0), rtol=1e-6)
