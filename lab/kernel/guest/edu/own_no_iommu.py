"""Guest tests: VFIO on a machine whose IOMMU is off: refused, unless asked for by name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.kernel.guest.edu import edu
from lab.kernel.guest.edu.edu import Edu
from lab.kernel.guest.host import within
from ugpu.hcq.errors import IommuOff
from ugpu.hcq.transport.pci.binding import Binding, plan
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.system import System
from ugpu.hcq.transport.vfio.transport import VfioTransport

SIZE = 2048
SWITCH = Path("/sys/module/vfio/parameters/enable_unsafe_noiommu_mode")


def function() -> PciFunction:
    return PciFunction.find(System(), edu.address())


def test_without_an_iommu_nothing_is_bound_or_opened() -> None:
    assert function().group is None
    with pytest.raises(IommuOff, match="intel_iommu=on"):
        plan(function())
    with pytest.raises(IommuOff):
        VfioTransport(edu.address())
    assert function().driver is None


@pytest.fixture
def switched_on() -> Iterator[None]:
    SWITCH.write_text("Y")
    Path("/proc/sys/vm/compact_unevictable_allowed").write_text("0")
    with Binding.bind(function(), no_iommu=True):
        yield
    SWITCH.write_text("N")


@pytest.mark.usefixtures("switched_on")
def test_asked_for_by_name_it_works_and_warns(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(IommuOff):
        VfioTransport(edu.address())
    with VfioTransport(edu.address(), no_iommu=True) as transport:
        assert "all memory of this machine" in caplog.text
        device = Edu(transport)
        assert device.alive()
        device.master()
        memory = transport.allocate_dma(4096)
        pattern = os.urandom(SIZE)
        memory.view[:SIZE] = pattern
        bus = memory.segments[0].address
        device.store(bus, SIZE)
        device.load(bus + SIZE, SIZE)
        assert bytes(memory.view[SIZE:]) == pattern
        interrupts = transport.interrupts
        assert interrupts is not None
        device.window.write32(edu.IRQ_RAISE, 1)
        assert interrupts.wait(within(10))
