"""Guest tests: several MSI-X vectors through the kernel's VFIO, on a network card that has five.

The card is QEMU's e1000e (Intel 82574), without a driver and without a network: software raises its
causes by a register and says which vector each takes. Source: Intel 82574 datasheet, 10.2.4.
"""

from __future__ import annotations

from pathlib import Path

from lab.kernel.guest.host import within
from ugpu.hcq.transport.pci.binding import Binding
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.system import System
from ugpu.hcq.transport.vfio.transport import VfioTransport

IDS = (0x8086, 0x10D3)
# Cause set, cause read, mask set; which vector a cause takes (4 bits each: number, valid).
ICS, ICR, IMS, IVAR = 0xC8, 0xC0, 0xD0, 0xE4
# The causes that IVAR sends somewhere, by its fields in order, are bits of ICR from here on.
FIRST_CAUSE, CAUSES, VALID = 20, 5, 8
LIMIT_S = 30


def card() -> str:
    for entry in sorted(Path("/sys/bus/pci/devices").iterdir()):
        if tuple(int((entry / key).read_text(), 16) for key in ("vendor", "device")) == IDS:
            return entry.name
    raise LookupError("the guest has no such card")


def test_each_cause_comes_on_its_vector() -> None:
    function = PciFunction.find(System(), card())
    with Binding.bind(function), VfioTransport(function.address) as transport:
        transport.config_write(4, transport.config_read(4, 2) | 4, 2)
        interrupts = transport.interrupts
        assert interrupts is not None and interrupts.vectors == CAUSES
        interrupts.enable(CAUSES)
        registers = transport.window(0)
        registers.write32(IVAR, sum((VALID | number) << 4 * number for number in range(CAUSES)))
        registers.write32(IMS, ((1 << CAUSES) - 1) << FIRST_CAUSE)
        silent = set(range(CAUSES))
        for vector in (3, 0, 4, 1, 2):
            registers.write32(ICS, 1 << FIRST_CAUSE + vector)
            assert interrupts.wait(within(LIMIT_S), vector), vector
            registers.read32(ICR)
            # A cause may be told again before ICR is read, but no vector may come for another.
            silent.remove(vector)
            assert not any(interrupts.wait(0, other) for other in silent)
