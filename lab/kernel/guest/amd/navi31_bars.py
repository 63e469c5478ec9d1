"""Guest tests: the Resizable BAR of the card, by the kernel's `resource0_resize`.

QEMU shows its guest one size of a passed-through BAR, the present one (hw/vfio/pci.c,
vfio_setup_rebar_ecap), so that here the kernel gives that size again: it takes the BAR's address
away, writes the capability, and finds an address anew, which is the whole of its way.
"""

from __future__ import annotations

import pytest

from lab.kernel.guest.amd import navi31
from ugpu.hcq.errors import BadArgument, BarTooSmall
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.pci.sysfs import SysfsTransport, bar_sizes
from ugpu.hcq.transport.system import System
from ugpu.hcq.transport.vfio.transport import VfioTransport

VRAM_BAR, REGISTER_BAR = 0, 5
SIZE = 1 << 30


def function() -> PciFunction:
    return PciFunction.find(System(), navi31.address())


def test_the_sizes_offered_are_read() -> None:
    assert bar_sizes(function(), VRAM_BAR) == [SIZE]
    assert bar_sizes(function(), REGISTER_BAR) == [], "this one has no such capability"


def test_a_size_that_is_not_offered_is_refused_before_anything_changes() -> None:
    before = function().bars()
    with SysfsTransport(navi31.address()) as transport:
        with pytest.raises(BadArgument, match="1024 MiB"):
            transport.resize(VRAM_BAR, 256 << 20)
        with pytest.raises(BadArgument):
            transport.resize(REGISTER_BAR, 1 << 20)
        transport.window(VRAM_BAR)
        with pytest.raises(BadArgument, match="in use"):
            transport.resize(VRAM_BAR, SIZE)
    assert function().bars() == before


def test_the_kernel_resizes_and_the_card_works_on() -> None:
    with SysfsTransport(navi31.address()) as transport:
        transport.resize(VRAM_BAR, SIZE)
        bar = next(bar for bar in function().bars() if bar.index == VRAM_BAR)
        assert bar.size == SIZE and bar.assigned
        window = transport.window(VRAM_BAR)
        window.write32(64 << 20, 0x1234_5678)
        assert window.read32(64 << 20) == 0x1234_5678
        assert transport.window(REGISTER_BAR).read32(0) != 0xFFFF_FFFF


def test_a_bar_that_is_too_small_is_named_with_the_remedy() -> None:
    with navi31.bound() as name, pytest.raises(BarTooSmall, match="Resizable BAR"):
        VfioTransport(name.removeprefix("pci:"), least_bars={VRAM_BAR: 2 * SIZE})
