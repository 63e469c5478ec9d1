"""Errors name the lines that built the tensors in question."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np
import pytest

from ugpu.compiler import Tensor
from ugpu.compiler.graph import origin
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument


def line() -> int:
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


def test_a_broadcast_error_names_both_lines(cpu: Device) -> None:
    left, first = Tensor(np.zeros((3, 4)), device=cpu), line()
    right, second = Tensor.ones(5, device=cpu), line()
    moved, third = right.exp().reshape(5, 1).softmax(0), line()
    with pytest.raises(BadArgument) as error:
        left + right
    assert "add" in str(error.value) and "[3, 4]" in str(error.value)
    assert f"{__file__}:{first}" in str(error.value)
    assert f"{__file__}:{second}" in str(error.value)
    with pytest.raises(BadArgument, match=rf"\[5, 1\] .built at .*:{third}\)"):
        moved @ left


@pytest.mark.parametrize(
    "build",
    [
        lambda x: x.reshape(5),
        lambda x: x.permute(0, 0),
        lambda x: x.sum(7),
        lambda x: x @ x,
        lambda x: x[9],
        lambda x: x.item(),
        lambda x: x.expand(7, 4),
        lambda x: Tensor.cat([x, x[0]]),
        lambda x: Tensor.stack([x, x[0]]),
    ],
)
def test_every_shape_error_names_a_line(cpu: Device, build: Callable[[Tensor], object]) -> None:
    made, number = Tensor(np.zeros((3, 4)), device=cpu), line()
    with pytest.raises(BadArgument) as error:
        build(made)
    assert f"{__file__}:{number}" in str(error.value)


def test_the_line_of_a_call_over_several_lines(cpu: Device) -> None:
    made = (
        Tensor(np.zeros(3), device=cpu)
        + 1
    )  # fmt: skip
    start = origin.text(made.node.origin).rpartition(":")[2]
    assert abs(int(start) - line()) <= 5
    assert origin.text(None) == ""
