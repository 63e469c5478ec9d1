"""Signs of zeros, infinities and NaN: the rules of docs/accuracy.md, the same on every device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.support.compiler.compiler_devices import device_fixture
from ugpu.compiler import Tensor
from ugpu.hcq.device.device import Device

device = device_fixture("cpu", "virtual:navi31", "virtual:gh100", "virtual:a630")
INF, NAN, LARGEST = float("inf"), float("nan"), float(np.finfo(np.float32).max)
Work = Callable[..., Tensor]

# name, the work, its inputs, its results: compared by bits, NaN by being one
CASES: list[tuple[str, Work, list[list[float]], list[float]]] = [
    ("maximum", Tensor.maximum, [[-0.0, 0.0, -0.0, NAN, 1], [0.0, -0.0, -0.0, 1, NAN]],
     [0.0, 0.0, -0.0, NAN, NAN]),
    ("minimum", Tensor.minimum, [[-0.0, 0.0, 0.0, NAN, 1], [0.0, -0.0, 0.0, 1, NAN]],
     [-0.0, -0.0, 0.0, NAN, NAN]),
    ("max", lambda x: x.max(0, keepdims=True), [[-0.0, 0.0, -0.0]], [0.0]),
    ("min", lambda x: x.min(0, keepdims=True), [[0.0, -0.0, 0.0]], [-0.0]),
    ("max of minus zeros", lambda x: x.max(0, keepdims=True), [[-0.0, -0.0]], [-0.0]),
    ("cummax", lambda x: x.cummax(0), [[-0.0, 0.0, -0.0, NAN, 1]], [-0.0, 0.0, 0.0, NAN, NAN]),
    ("cummin", lambda x: x.cummin(0), [[0.0, -0.0, 0.0]], [0.0, -0.0, -0.0]),
    ("relu", Tensor.relu, [[-0.0, 0.0, -1, NAN, INF, -INF]], [0.0, 0.0, 0.0, NAN, INF, 0.0]),
    ("relu6", Tensor.relu6, [[-0.0, -1, 7, NAN]], [0.0, 0.0, 6, NAN]),
    ("clip", lambda x: x.clip(0, 1), [[-0.0, 2, NAN]], [0.0, 1, NAN]),
    ("remainder", Tensor.remainder, [[-0.0, 0.0, -3, 3, 5, -5], [1, -1, 3, -3, INF, INF]],
     [-0.0, 0.0, -0.0, 0.0, 5, INF]),
    ("fmod", Tensor.fmod, [[-0.0, 0.0, -3, 3, -5], [1, -1, 3, -3, INF]],
     [-0.0, 0.0, -0.0, 0.0, -5]),
    ("floor_divide", Tensor.floor_divide, [[-0.0, 0.0, -0.0], [1, -1, -3]], [-0.0, -0.0, 0.0]),
    ("sum", lambda x: x.sum(0, keepdims=True), [[-0.0, -0.0]], [0.0]),
    ("mean", lambda x: x.mean(0, keepdims=True), [[-0.0, -0.0]], [0.0]),
    ("cumsum", lambda x: x.cumsum(0), [[-0.0, -0.0, 1]], [0.0, 0.0, 1]),
    ("prod", lambda x: x.prod(0, keepdims=True), [[-0.0, 1]], [-0.0]),
    ("square root of pow", lambda x: x**0.5, [[-0.0, 0.0, -INF, INF, -1, NAN, 4]],
     [0.0, 0.0, INF, INF, NAN, NAN, 2]),
    ("inverse root of pow", lambda x: x**-0.5, [[-0.0, 0.0, -INF, INF, -1, NAN, 4]],
     [INF, INF, 0.0, 0.0, NAN, NAN, 0.5]),
    ("pow by tensors", lambda x, y: x**y,
     [[-0.0, -INF, -0.0, -INF, -1], [-0.5, -0.5, 0.5, 0.5, 0.5]], [INF, 0.0, 0.0, INF, NAN]),
    ("pow", lambda x: x**-3, [[-0.0, 0.0, -INF]], [-INF, INF, -0.0]),
    ("sin", Tensor.sin, [[-0.0, 0.0, INF]], [-0.0, 0.0, NAN]),
    ("tan", Tensor.tan, [[-0.0]], [-0.0]),
    ("sinh", Tensor.sinh, [[-0.0, -INF]], [-0.0, -INF]),
    ("tanh", Tensor.tanh, [[-0.0, -INF]], [-0.0, -1]),
    ("atan", Tensor.atan, [[-0.0]], [-0.0]),
    ("expm1", Tensor.expm1, [[-0.0, -INF]], [-0.0, -1]),
    ("log1p", Tensor.log1p, [[-0.0, -1]], [-0.0, -INF]),
    ("erf", Tensor.erf, [[-0.0, -INF]], [-0.0, -1]),
    ("sqrt", Tensor.sqrt, [[-0.0, -INF]], [-0.0, NAN]),
    ("rsqrt", Tensor.rsqrt, [[-0.0, 0.0, INF]], [-INF, INF, 0.0]),
    ("reciprocal", Tensor.reciprocal, [[-0.0, -INF]], [-INF, -0.0]),
    ("round", Tensor.round, [[-0.25, -0.5, 0.5]], [-0.0, -0.0, 0.0]),
    ("sign", Tensor.sign, [[-0.0, 0.0, -2, 2, NAN]], [0.0, 0.0, -1, 1, NAN]),
    ("hardswish", Tensor.hardswish, [[LARGEST, INF, -INF, -4, 3]], [LARGEST, INF, NAN, -0.0, 3]),
    ("silu", Tensor.silu, [[LARGEST, INF, -INF]], [LARGEST, INF, NAN]),
    ("times zero", lambda x: x * 0, [[NAN, INF, -1, -0.0, 1]], [NAN, NAN, -0.0, -0.0, 0.0]),
    ("times zero plus one", lambda x: x * 0 + 1, [[NAN, INF, 2]], [NAN, NAN, 1]),
    ("plus zero", lambda x: x + 0, [[-0.0, 0.0, NAN]], [0.0, 0.0, NAN]),
    ("minus itself", lambda x: x - x, [[NAN, INF, 1]], [NAN, NAN, 0.0]),
    ("over itself", lambda x: x / x, [[NAN, INF, 0.0, 3]], [NAN, NAN, NAN, 1]),
    ("negative", lambda x: -x, [[0.0, -0.0]], [-0.0, 0.0]),
    ("zero minus", lambda x: 0 - x, [[0.0, -0.0]], [0.0, 0.0]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("work", "inputs", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_special_values(
    device: Device, work: Work, inputs: list[list[float]], expected: list[float]
) -> None:
    found = work(*(Tensor(np.array(each, np.float32), device=device) for each in inputs)).numpy()
    wanted = np.array(expected, np.float32)
    assert np.array_equal(np.isnan(found), np.isnan(wanted)), (found, wanted)
    kept = ~np.isnan(wanted)
    assert np.array_equal(found[kept], wanted[kept]), (found, wanted)
    assert np.array_equal(np.signbit(found[kept]), np.signbit(wanted[kept])), (found, wanted)


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint32"])
def test_choices_of_known_numbers(device: Device, dtype: str) -> None:
    """By a condition and by the opposite one; uint32: the bits of such floats."""
    x = Tensor(np.array([1, 0, 1], np.float32), device=device)
    for yes, no in ((-1.0, 0.0), (0.0, -1.0), (-1.0, -0.0), (-0.0, -1.0)):
        given = np.array([yes, no], np.float32)
        given = given.view(np.uint32) if dtype == "uint32" else given.astype(dtype)
        one, two = (Tensor.full((3,), each.item(), dtype=dtype, device=device) for each in given)
        for found in ((x > 0).where(one, two), (~(x > 0)).where(two, one)):
            assert found.numpy().tobytes() == given[[0, 1, 0]].tobytes(), (yes, no)
