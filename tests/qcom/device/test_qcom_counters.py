"""Counters and power constraints of the driver, on the model of KGSL."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from ugpu import hcq
from ugpu.hcq.errors import BadArgument, Closed, NotSupported, UgpuError
from ugpu.qcom.device.device import AdrenoDevice
from ugpu.qcom.device.driver import AdrenoDriver
from ugpu.virtual.adreno.node import VirtualNode


@pytest.fixture
def device() -> Iterator[AdrenoDevice]:
    with hcq.open("virtual:a740") as opened:
        assert isinstance(opened, AdrenoDevice)
        yield opened


def node_of(device: AdrenoDevice) -> VirtualNode:
    assert isinstance(device.driver, AdrenoDriver)
    node = device.driver.interface.node
    assert isinstance(node, VirtualNode)
    return node


def test_events_are_counted_until_they_are_given_back(device: AdrenoDevice) -> None:
    node = node_of(device)
    with device.counters(("ALWAYSON", 0), ("SP", 3), ("SP", 3)) as counters:
        assert len(node.counters) == 2
        before = counters.read()
        with device.alloc(4096) as buffer:
            buffer.fill(1)
        after = counters.read()
        assert after[("ALWAYSON", 0)] > before[("ALWAYSON", 0)] > 0 and after[("SP", 3)] == 0
    assert not node.counters
    with pytest.raises(BadArgument):
        counters.read()
    counters.close()


def test_a_group_that_is_full_leaves_none_held(device: AdrenoDevice) -> None:
    full = [("TSE", number) for number in range(5)]
    with pytest.raises(UgpuError):
        device.counters(*full)
    assert not node_of(device).counters
    with device.counters(*full[:4]):
        pass
    for wrong in ((), (("NONE", 0),), (("MAX", 0),), (("SP", -1),), (("SP", 1 << 32),)):
        with pytest.raises(BadArgument):
            device.counters(*wrong)


def test_power_constraints_outlive_a_reset(device: AdrenoDevice) -> None:
    machine = node_of(device).machine

    def held() -> set[int | None]:
        return {context.power for context in machine.contexts.values()}

    assert held() == {None}
    device.constrain_power("max")
    before = held()
    assert before != {None}
    device.reset()
    assert held() == before
    machine.refuse("SETPROPERTY", errno.EINVAL)
    with pytest.raises(UgpuError):
        device.constrain_power("min")
    assert held() == before
    device.constrain_power("")
    device.reset()
    assert held() == {None}
    with pytest.raises(BadArgument):
        device.constrain_power("fast")
    device.close()
    with pytest.raises(Closed):
        device.constrain_power("min")


def test_msm_has_neither() -> None:
    with hcq.open("virtual:a630+msm") as opened:
        assert isinstance(opened, AdrenoDevice)
        with pytest.raises(NotSupported):
            opened.counters(("SP", 1))
        with pytest.raises(NotSupported):
            opened.constrain_power("max")
