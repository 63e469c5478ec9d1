"""@jit and tensors from outside that are not computed yet when it records."""

from __future__ import annotations

import numpy as np
import pytest

from ugpu.compiler import Tensor, jit
from ugpu.hcq.device.device import Device


def const(device: Device, *values: float) -> Tensor:
    return Tensor(np.array(values, np.float32), device=device)


@pytest.mark.parametrize("form", ["same", "view", "assigned"])
def test_a_value_begun_before_and_returned(cpu: Device, form: str) -> None:
    """What a recorded call computes for a tensor from outside is in that tensor's memory too."""
    first, other, calls = const(cpu, 1, 2), const(cpu, 0, 0), [0]

    @jit
    def step(x: Tensor) -> Tensor:
        calls[0] += 1
        if calls[0] == 1:
            return x * 2
        if form == "assigned":
            other.assign(source)
        return source.reshape(2, 1)

    step(const(cpu, 1))
    before = first * 1  # so the assignment is not in place
    first[0] = 5
    source = first.reshape(1, 2).reshape(2) if form == "view" else first
    assert step(const(cpu, 1)).tolist() == [[5], [2]]
    taken = [const(cpu, 7, 7) + turn for turn in range(4)]
    assert [each.tolist() for each in taken] == [[7 + turn] * 2 for turn in range(4)]
    assert before.tolist() == [1, 2]
    assert first.tolist() == [5, 2] and source.tolist() == [5, 2]
    assert other.tolist() == ([5, 2] if form == "assigned" else [0, 0])
