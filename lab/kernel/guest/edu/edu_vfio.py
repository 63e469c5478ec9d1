"""Guest tests: the VFIO transport on the edu device, under the guest's unmodified kernel."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from lab.kernel.guest.edu import edu
from lab.kernel.guest.edu.edu import Edu
from lab.kernel.guest.host import within
from ugpu.hcq.errors import (
    BadArgument,
    Closed,
    DeviceBusy,
    DeviceNotFound,
    GroupNotViable,
    NotSupported,
)
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.transport.base import ResetKind
from ugpu.hcq.transport.pci.binding import Binding, plan
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.system import System
from ugpu.hcq.transport.vfio.container import Container
from ugpu.hcq.transport.vfio.transport import VfioTransport

SIZE = 2048
Record = Callable[[str, object], None]


@pytest.fixture(scope="module", autouse=True)
def bound() -> Iterator[None]:
    """The device in vfio-pci's hands for this file, and back without a driver after it."""
    function = PciFunction.find(System(), edu.address())
    assert function.driver is None
    with Binding.bind(function) as binding:
        assert [str(step) for step in binding.steps] == [
            f"{function.address}: no driver -> vfio-pci"
        ]
        assert function.driver == "vfio-pci"
        yield
    if function.folder.is_dir():
        assert function.driver is None and function.override is None


@pytest.fixture
def transport() -> Iterator[VfioTransport]:
    with VfioTransport(edu.address(), reach_bits=28) as opened:
        yield opened


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def mappings() -> int:
    return sum("vfio" in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_registers_answer_through_the_mapped_bar(transport: VfioTransport) -> None:
    device = Edu(transport)
    assert transport.identity.vendor == edu.VENDOR and transport.identity.device == edu.DEVICE
    assert type(device.window).__name__ == "MappedWindow"
    assert device.window.read32(edu.IDENTITY) & 0xFF == 0xED
    assert device.alive()
    assert device.factorial(10) == 3_628_800
    assert transport.present()


def test_accesses_outside_the_rules_are_refused(transport: VfioTransport) -> None:
    window = transport.window(0)
    for offset in (-4, 2, window.size):
        with pytest.raises(BadArgument):
            window.read32(offset)
    with pytest.raises(BadArgument):
        transport.window(1)
    with pytest.raises(BadArgument):
        transport.config_read(3, 2)


def test_memory_moves_both_ways(transport: VfioTransport) -> None:
    device = Edu(transport)
    device.master()
    memory = transport.allocate_dma(8192)
    pattern = os.urandom(SIZE)
    memory.view[:SIZE] = pattern
    bus = memory.segments[0].address
    device.store(bus, SIZE)
    device.load(bus + 4096, SIZE)
    assert bytes(memory.view[4096 : 4096 + SIZE]) == pattern
    memory.close()


def test_memory_that_was_freed_is_out_of_reach(transport: VfioTransport) -> None:
    """An array keeps the pages alive, so that a stray write would be seen."""
    device = Edu(transport)
    device.master()
    memory = transport.allocate_dma(4096)
    device.store(memory.segments[0].address, SIZE)
    memory.view[:] = b"\xa5" * 4096
    kept = np.frombuffer(memory.view, dtype=np.uint8)
    bus = memory.segments[0].address
    memory.close()
    before = faults()
    device.load(bus, SIZE)
    wait_for_fault(before)
    assert (kept == 0xA5).all()


def test_a_device_cannot_reach_what_was_never_mapped(transport: VfioTransport) -> None:
    device = Edu(transport)
    device.master()
    memory = transport.allocate_dma(4096)
    memory.view[:] = b"\x5a" * 4096
    before = faults()
    device.load(memory.segments[0].address + (64 << 20), SIZE)
    wait_for_fault(before)
    assert bytes(memory.view) == b"\x5a" * 4096


def faults() -> int:
    """DMA faults that the guest kernel has logged (Linux drivers/iommu/intel/dmar.c)."""
    text = subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout
    return text.count("DMAR: [DMA ")


def wait_for_fault(before: int) -> None:
    Clock().wait_until(
        lambda: faults() > before, unit="IOMMU", waiting_for="a logged fault", limit_s=within(10)
    )


@pytest.mark.parametrize("reserved", [0, 16])
def test_large_memory_is_one_run(
    transport: VfioTransport, record_property: Record, reserved: int
) -> None:
    pool = Path("/proc/sys/vm/nr_hugepages")
    pool.write_text(str(reserved))
    pages = "reserved huge pages" if reserved else "ordinary pages"
    for size in (4096, 2 << 20, 16 << 20):
        start = time.perf_counter()
        memory = transport.allocate_dma(size, contiguous=True)
        mapped = time.perf_counter()
        assert len(memory.segments) == 1 and memory.segments[0].size == size
        assert not any(memory.view[:: 1 << 16])
        freed = time.perf_counter()
        memory.close()
        end = time.perf_counter()
        record_property(
            f"map {size >> 10} KiB, {pages}",
            f"{(mapped - start) * 1e6:.0f} us, unmap {(end - freed) * 1e6:.0f} us",
        )
    pool.write_text("0")


def test_interrupts_come_one_by_one(transport: VfioTransport, record_property: Record) -> None:
    device = Edu(transport)
    device.master()  # an MSI is a memory write of the device
    interrupts = transport.interrupts
    assert interrupts is not None
    assert not interrupts.wait(0)
    best, limit_s = 1.0, within(10)
    for number in range(1, 20):
        start = time.perf_counter()
        device.window.write32(edu.IRQ_RAISE, number)
        assert interrupts.wait(limit_s)
        best = min(best, time.perf_counter() - start)
        assert device.acknowledge() == number
    assert not interrupts.wait(0.01)
    record_property("interrupt latency", f"{best * 1e6:.0f} us")


def test_registers_are_fast(transport: VfioTransport, record_property: Record) -> None:
    window = transport.window(0)
    read = window.read32
    start = time.perf_counter()
    for _ in range(2000):
        read(0)
    record_property("register read", f"{(time.perf_counter() - start) / 2000 * 1e6:.2f} us")
    write = window.write32
    start = time.perf_counter()
    for _ in range(2000):
        write(4, 1)
    record_property("register write", f"{(time.perf_counter() - start) / 2000 * 1e6:.2f} us")


def test_closing_wakes_a_waiter_and_ends_accesses() -> None:
    transport = VfioTransport(edu.address(), reach_bits=28)
    interrupts = transport.interrupts
    window = transport.window(0)
    assert interrupts is not None
    ended: list[str] = []

    def wait() -> None:
        try:
            interrupts.wait(30)
        except Closed:
            ended.append("closed")

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.1)
    transport.close()
    waiter.join(within(10))
    assert ended == ["closed"]
    with pytest.raises(Closed):
        window.read32(0)
    with pytest.raises(Closed):
        transport.config_read(0)
    transport.close()


def test_nothing_is_left_open() -> None:
    with VfioTransport(edu.address(), reach_bits=28):
        pass
    before = descriptors(), mappings()
    for _ in range(5):
        with VfioTransport(edu.address(), reach_bits=28) as transport:
            assert transport.interrupts is not None
            transport.window(0).read32(0)
            transport.allocate_dma(3 << 20)
    assert (descriptors(), mappings()) == before


def test_a_second_owner_is_told_who_has_it(transport: VfioTransport) -> None:
    with pytest.raises(DeviceBusy) as caught:
        VfioTransport(edu.address())
    assert f"pid {os.getpid()}" in str(caught.value)


def test_the_bus_reset_brings_the_device_back(transport: VfioTransport) -> None:
    device = Edu(transport)
    device.master()
    transport.reset(ResetKind.BUS)
    assert device.alive() and transport.present()
    memory = transport.allocate_dma(4096)
    device.store(memory.segments[0].address, SIZE)  # the kernel restored the command register too
    device.load(memory.segments[0].address + SIZE, SIZE)


def test_the_function_reset_is_the_kernels_choice(transport: VfioTransport) -> None:
    device = Edu(transport)
    transport.reset(ResetKind.FUNCTION)  # behind a root port the kernel resets the link
    assert device.alive()
    with pytest.raises(NotSupported):
        transport.reset(ResetKind.POWER)


def test_binding_what_is_bound_is_nothing_to_do() -> None:
    assert plan(PciFunction.find(System(), edu.address())) == []


def test_no_device_at_an_address() -> None:
    with pytest.raises(DeviceNotFound):
        VfioTransport("0000:7f:1f.7")


def test_a_bridge_is_not_a_device() -> None:
    bridge = PciFunction.find(System(), edu.address()).parent
    assert bridge is not None
    with pytest.raises(BadArgument, match="bridge"):
        plan(bridge)


def shared() -> PciFunction:
    """The second device: it shares its group with a network card, behind a plain PCI bridge."""
    return PciFunction.find(System(), edu.addresses()[1])


def test_a_group_with_a_network_card_is_refused_before_anything_is_unbound() -> None:
    function = shared()
    drivers = {member.address: member.driver for member in function.group_members()}
    assert "e1000" in drivers.values()
    with pytest.raises(DeviceBusy, match="network") as caught:
        Binding.bind(function)
    assert "e1000" in str(caught.value)
    assert {member.address: member.driver for member in function.group_members()} == drivers
    assert function.override is None


def test_a_group_that_the_kernel_shares_is_not_viable() -> None:
    function = shared()
    with Binding.bind_alone(function):
        with pytest.raises(GroupNotViable, match="e1000"):
            VfioTransport(function.address)
        with pytest.raises(GroupNotViable, match="e1000"):
            Container(function.system, function)  # the kernel says so too
    assert function.driver is None
