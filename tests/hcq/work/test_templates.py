"""Launches of a known shape are not encoded again, and compute what they should."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from tests.support.kernels import contract_object
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, Closed
from ugpu.hcq.work.command import Command
from ugpu.hcq.work.command_buffer import CommandBuffer
from ugpu.hcq.work.prepared import _MOST_SHAPES
from ugpu.hcq.work.program import Kernel, Parameter

COUNT = 64


@pytest.fixture(params=["gh100", "navi31"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    with hcq.open(f"virtual:{request.param}") as opened:
        yield opened


@pytest.fixture
def encoded(device: Device, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many commands each encoding of the compute queue was of."""
    hardware = device.queue().hardware
    real, seen = hardware.encode, []

    def encode(commands: Sequence[Command]) -> CommandBuffer:
        seen.append(len(commands))
        return real(commands)

    monkeypatch.setattr(hardware, "encode", encode)
    return seen


def scale(device: Device, kernel: Kernel, by: int, groups: int = 1) -> None:
    with device.alloc(4 * COUNT) as given, device.alloc(4 * COUNT) as out:
        numbers = np.arange(COUNT, dtype=np.uint32)
        given.copy_from(numbers)
        args = (out, given, np.uint32(COUNT), np.uint32(by))
        with device.queue() as queue:
            queue.launch(kernel, grid=(groups,), block=(COUNT,), args=args)
        assert (out.numpy(np.uint32) == by * numbers).all()


def test_a_shape_is_encoded_once(device: Device, encoded: list[int]) -> None:
    kernel = device.load(contract_object(device.target))["scale"]
    for by in range(5):
        scale(device, kernel, by)
    assert encoded == [2]  # the launch, and the signal of its end
    scale(device, kernel, 3, groups=2)
    assert encoded == [2, 2]
    again = device.load(contract_object(device.target))["scale"]
    scale(device, again, 7)
    assert len(encoded) == 3


def test_a_kernel_keeps_its_last_shapes(device: Device, encoded: list[int]) -> None:
    kernel = device.load(contract_object(device.target))["scale"]
    for groups in range(1, _MOST_SHAPES + 2):
        scale(device, kernel, groups, groups)
    assert len(kernel.templates) == _MOST_SHAPES
    scale(device, kernel, 2, groups=_MOST_SHAPES + 1)  # still there
    assert len(encoded) == _MOST_SHAPES + 1
    scale(device, kernel, 2, groups=1)  # had to go
    assert len(encoded) == _MOST_SHAPES + 2


def test_what_is_wrong_is_told_as_before(device: Device) -> None:
    program = device.load(contract_object(device.target))
    kernel = program["scale"]
    scale(device, kernel, 3)
    out = device.alloc(4 * COUNT)
    queue = device.queue()
    queue.launch(kernel, grid=(1,), block=(COUNT,),
                 args=(out, out, np.uint32(COUNT), Parameter(0, 4)))  # fmt: skip
    with pytest.raises(BadArgument, match="captured graph"):
        queue.submit()
    queue = device.queue()
    args = (out, out, np.uint32(COUNT), np.uint32(1))
    queue.launch(kernel, grid=(1,), block=(COUNT,), args=args)
    out.close()
    with pytest.raises(Closed):
        queue.submit()
    scale(device, kernel, 5)
    device.reset()
    scale(device, kernel, 6)
