"""Guest tests: the sysfs transport on the edu device: registers, resets, hot-plug, DMA."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.kernel.guest.edu import edu
from lab.kernel.guest.edu.edu import Edu
from lab.kernel.guest.host import within
from ugpu.hcq.errors import AccessDenied, Closed, DeviceBusy, HostError, OutOfMemory
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.transport.base import ResetKind
from ugpu.hcq.transport.pci import config as pci_config
from ugpu.hcq.transport.pci.binding import Binding
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.pci.physical import PhysicalMemory
from ugpu.hcq.transport.pci.sysfs import SysfsTransport, rescan
from ugpu.hcq.transport.system import System

SIZE = 2048
MOST = 400  # MiB, of the guest's 1 GiB


@pytest.fixture
def transport() -> Iterator[SysfsTransport]:
    with SysfsTransport(edu.address()) as opened:
        yield opened


def test_registers_answer(transport: SysfsTransport) -> None:
    device = Edu(transport)
    assert transport.identity.vendor == edu.VENDOR
    assert device.alive() and device.factorial(5) == 120
    assert transport.interrupts is None


def test_both_resets_keep_the_device_usable(transport: SysfsTransport) -> None:
    device = Edu(transport)
    bars = [transport.config_read(0x10 + 4 * index) for index in range(6)]
    message = pci_config.capability(transport.config_read, 5)  # MSI; nobody restores it when off
    assert message is not None
    for kind in (ResetKind.FUNCTION, ResetKind.BUS):
        transport.config_write(message + 4, 0xFEE0_0000)
        transport.reset(kind)
        assert transport.config_read(message + 4) == 0, "the reset did not reach the device"
        assert [transport.config_read(0x10 + 4 * index) for index in range(6)] == bars
        assert device.alive()


def test_a_bus_shared_with_others_is_not_reset() -> None:
    with (
        SysfsTransport(edu.addresses()[1]) as transport,
        pytest.raises(DeviceBusy, match="e1000"),
    ):
        transport.reset(ResetKind.BUS)


def test_the_device_comes_back_after_removal() -> None:
    address = edu.address()
    transport = SysfsTransport(address)
    transport.remove()
    assert not Path(f"/sys/bus/pci/devices/{address}").exists()
    with pytest.raises(Closed):
        transport.config_read(0)
    rescan(System())
    Clock().wait_until(
        lambda: Path(f"/sys/bus/pci/devices/{address}").exists(),
        unit="PCI bus",
        waiting_for="the device after a rescan",
        limit_s=within(10),
    )
    with SysfsTransport(address) as again:
        assert Edu(again).alive()


def test_a_bound_device_is_refused() -> None:
    function = PciFunction.find(System(), edu.address())
    with Binding.bind(function), pytest.raises(DeviceBusy, match="vfio-pci"):
        SysfsTransport(function.address)


def test_physical_addresses_are_refused_behind_the_iommu(transport: SysfsTransport) -> None:
    with pytest.raises(AccessDenied, match="IOMMU translates"):
        transport.allocate_dma(4096)


@pytest.fixture
def untranslated() -> Iterator[None]:
    """The device's IOMMU group passes addresses through, as `iommu=pt` does."""
    function = PciFunction.find(System(), edu.address())
    path = Path(f"/sys/kernel/iommu_groups/{function.group}/type")
    former = path.read_text()
    path.write_text("identity")
    yield
    path.write_text(former)


@pytest.mark.usefixtures("untranslated")
def test_memory_moves_at_physical_addresses(transport: SysfsTransport) -> None:
    compaction = Path("/proc/sys/vm/compact_unevictable_allowed")
    compaction.write_text("1")
    with pytest.raises(HostError, match="migrate locked memory"):
        transport.allocate_dma(4096)
    compaction.write_text("0")
    device = Edu(transport)
    device.master()
    memory = transport.allocate_dma(4096, contiguous=True)
    pattern = os.urandom(SIZE)
    memory.view[:SIZE] = pattern
    bus = memory.segments[0].address
    device.store(bus, SIZE)
    device.load(bus + SIZE, SIZE)
    assert bytes(memory.view[SIZE:]) == pattern
    scattered = transport.allocate_dma(1 << 20)
    assert sum(segment.size for segment in scattered.segments) == 1 << 20
    high = above(transport, 1 << 28)
    high.view[:SIZE] = pattern
    device.store(high.segments[0].address, SIZE)
    device.load(high.segments[0].address + SIZE, SIZE)
    assert bytes(high.view[SIZE : 2 * SIZE]) == pattern


def above(transport: SysfsTransport, address: int) -> PhysicalMemory:
    """Memory that begins at `address` or further up; what lies below is held meanwhile."""
    for _ in range(MOST):
        memory = transport.allocate_dma(1 << 20)
        if memory.segments[0].address >= address:
            return memory
    raise AssertionError("the guest has no memory there")


@pytest.mark.usefixtures("untranslated")
def test_memory_beyond_the_device_s_reach_is_not_handed_out() -> None:
    Path("/proc/sys/vm/compact_unevictable_allowed").write_text("0")
    with (
        SysfsTransport(edu.address(), reach_bits=28) as transport,
        pytest.raises(OutOfMemory, match="which the device cannot address"),
    ):
        above(transport, 1 << 28)


@pytest.mark.usefixtures("untranslated")
def test_memory_from_reserved_huge_pages_is_one_run(transport: SysfsTransport) -> None:
    Path("/proc/sys/vm/nr_hugepages").write_text("4")
    memory = transport.allocate_dma(4 << 20)
    assert all(segment.size % (2 << 20) == 0 for segment in memory.segments)
    memory.close()
    Path("/proc/sys/vm/nr_hugepages").write_text("0")
