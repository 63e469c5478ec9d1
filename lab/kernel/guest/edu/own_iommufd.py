"""Guest tests: VFIO without groups: the device's own node in an address space of iommufd."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from lab.kernel.guest.edu import edu
from lab.kernel.guest.edu.edu import Edu
from lab.kernel.guest.host import within
from ugpu.hcq.errors import DeviceBusy
from ugpu.hcq.transport.attach import attach_pci
from ugpu.hcq.transport.base import ResetKind
from ugpu.hcq.transport.pci.binding import Binding
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.system import System
from ugpu.hcq.transport.vfio.iommufd import IommufdSpace
from ugpu.hcq.transport.vfio.transport import VfioTransport

SIZE = 2048


@pytest.fixture(scope="module", autouse=True)
def bound() -> Iterator[None]:
    with Binding.bind(PciFunction.find(System(), edu.address())):
        yield


@pytest.fixture
def transport() -> Iterator[VfioTransport]:
    with VfioTransport(edu.address(), reach_bits=28, iommufd=True) as opened:
        assert isinstance(opened.space, IommufdSpace)
        yield opened


def test_registers_interrupts_and_resets(transport: VfioTransport) -> None:
    device = Edu(transport)
    assert device.alive() and device.factorial(10) == 3_628_800
    device.master()
    interrupts = transport.interrupts
    assert interrupts is not None and not interrupts.wait(0)
    device.window.write32(edu.IRQ_RAISE, 5)
    assert interrupts.wait(within(10)) and device.acknowledge() == 5
    for kind in (ResetKind.FUNCTION, ResetKind.BUS):
        transport.reset(kind)
        assert device.alive()


def test_memory_moves_both_ways_until_it_is_freed(transport: VfioTransport) -> None:
    device = Edu(transport)
    device.master()
    memory = transport.allocate_dma(8192)
    pattern = os.urandom(SIZE)
    memory.view[:SIZE] = pattern
    bus = memory.segments[0].address
    device.store(bus, SIZE)
    device.load(bus + 4096, SIZE)
    assert bytes(memory.view[4096 : 4096 + SIZE]) == pattern
    memory.view[:] = b"\xa5" * 8192
    kept = np.frombuffer(memory.view, dtype=np.uint8)
    memory.close()
    device.load(bus, SIZE)
    assert (kept == 0xA5).all()


def test_reserved_ranges_are_known(transport: VfioTransport) -> None:
    ranges = transport.space.ranges
    assert ranges and all(first <= last for first, last in ranges)
    assert not any(first <= 0xFEE0_0000 <= last for first, last in ranges), "the MSI window"


def test_a_second_owner_is_refused(transport: VfioTransport) -> None:
    with pytest.raises(DeviceBusy, match=f"pid {os.getpid()}"):
        VfioTransport(edu.address(), iommufd=True)


def test_by_option_and_by_group(transport: VfioTransport) -> None:
    transport.close()
    with attach_pci(edu.address(), via="iommufd", reach_bits=28) as one:
        assert Edu(one).alive()
    with attach_pci(edu.address(), reach_bits=28) as one:
        assert Edu(one).alive()


def test_nothing_is_left_open(transport: VfioTransport) -> None:
    transport.close()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with VfioTransport(edu.address(), reach_bits=28, iommufd=True) as again:
            again.allocate_dma(3 << 20)
    assert len(os.listdir("/proc/self/fd")) == before
