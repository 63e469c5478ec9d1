"""Several holders of one Adreno GPU on msm: files, address spaces and queues of their own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.adreno.mesa import needs_mesa
from tests.support.pci import descriptors
from tests.support.service.daemon import scaled
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import DeviceHang, NotSupported, OutOfMemory, UgpuError
from ugpu.qcom.device.driver import AdrenoDriver
from ugpu.virtual.adreno.gpu import build_machine
from ugpu.virtual.adreno.machine import VirtualMachine
from ugpu.virtual.adreno.msm.node import MsmNode

pytestmark = needs_mesa


@pytest.fixture
def machine() -> Iterator[VirtualMachine]:
    made = build_machine("a630")
    yield made
    made.close()


@pytest.fixture
def device(machine: VirtualMachine) -> Iterator[Device]:
    with hcq.open("virtual:a630+msm", chip=machine) as made:
        yield made
    assert not machine.violations


def tenant(device: Device, name: str = "tenant") -> Device:
    return Device(device.driver.open_tenant(name))


def test_tenants_have_queues_and_memory_of_their_own(
    device: Device, machine: VirtualMachine
) -> None:
    assert device.driver.sole_holder() == ""
    with tenant(device, "one") as one, tenant(device, "two") as two:
        assert len({id(node) for node in machine.nodes}) == 3
        assert all(scaled(each) for each in (one, two, device))
        memory = one.alloc(4096)
        memory.fill(0x5EC2E75)
        spaces = [node.space for node in machine.nodes if isinstance(node, MsmNode)]
        assert len(spaces) == 3
        assert (memory.numpy(np.uint32) == 0x5EC2E75).all()
    assert scaled(device), "which goes on after its tenants"


def test_the_order_of_closing_does_not_matter(machine: VirtualMachine) -> None:
    device = hcq.open("virtual:a630+msm", chip=machine)
    first = tenant(device)
    second = tenant(first)
    device.close()
    assert scaled(first) and scaled(second)
    first.close()
    assert scaled(second)
    second.close()
    assert not machine.contexts and not machine.violations


def test_a_hang_is_its_holders_alone(device: Device, machine: VirtualMachine) -> None:
    with tenant(device, "one") as one, tenant(device, "two") as two:
        machine.inject("hang")
        with pytest.raises(DeviceHang):
            scaled(one)
        assert scaled(two) and scaled(device)
        assert two.failure is None and device.failure is None
        one.reset()
        assert all(scaled(each) for each in (one, two, device))


def test_kgsl_has_one_holder_and_says_why() -> None:
    with hcq.open("virtual:a630") as device:
        assert "one address space" in device.driver.sole_holder()
        with pytest.raises(NotSupported, match="another holder: its kernel driver gives a process"):
            tenant(device)


def test_one_address_space_for_all_files_is_no_place_for_tenants(
    device: Device, machine: VirtualMachine
) -> None:
    """As Linux answers where the IOMMU has no page tables for each file."""
    machine.refuse("MSM_PARAM_VA_SIZE", 22, 2)
    assert "MSM_PARAM_VA_SIZE is refused" in device.driver.sole_holder()
    with pytest.raises(NotSupported, match="use one address space"):
        tenant(device)
    with tenant(device) as made:
        assert scaled(made)


@pytest.mark.parametrize("call", ["open", "MSM_PARAM_CHIP_ID", "GEM_NEW", "SUBMITQUEUE_NEW"])
def test_a_tenant_that_cannot_be_opened_leaves_nothing(
    device: Device, machine: VirtualMachine, call: str
) -> None:
    assert isinstance(device.driver, AdrenoDriver)
    before, used = descriptors.count(), machine.memory.used
    machine.refuse(call, 12)
    with pytest.raises(UgpuError) as caught:
        tenant(device)
    assert isinstance(caught.value, OutOfMemory) or call in str(caught.value)
    assert machine.memory.used == used and not descriptors.leaked(before)
    assert scaled(device)
