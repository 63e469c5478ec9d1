"""Inside the guest: QEMU's teaching device (docs/specs/edu.rst) by the transport protocol."""

from __future__ import annotations

from pathlib import Path

from lab.kernel.guest.host import within
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.transport.base import Transport, Window

VENDOR, DEVICE = 0x1234, 0x11E8
IDENTITY, LIVENESS, FACTORIAL, STATUS = 0x00, 0x04, 0x08, 0x20
IRQ_STATUS, IRQ_RAISE, IRQ_ACK = 0x24, 0x60, 0x64
DMA_SOURCE, DMA_TARGET, DMA_COUNT, DMA_COMMAND = 0x80, 0x88, 0x90, 0x98
INTERNAL = 0x40000  # the device's own 4 KiB, as DMA addresses see it
START, TO_MEMORY, INTERRUPT = 1, 2, 4
LIMIT_S = 10.0
BUS_MASTER = 0x4


def addresses() -> list[str]:
    """Where the devices are on the bus."""
    found = []
    for entry in sorted(Path("/sys/bus/pci/devices").iterdir()):
        ids = tuple(int((entry / name).read_text(), 16) for name in ("vendor", "device"))
        if ids == (VENDOR, DEVICE):
            found.append(entry.name)
    return found


def address() -> str:
    """The device that is alone behind a root port."""
    return addresses()[0]


class Edu:
    """The device's registers, behind any transport."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.window: Window = transport.window(0)

    def alive(self) -> bool:
        """Whether the liveness register inverts what is written."""
        self.window.write32(LIVENESS, 0x1234_5678)
        return self.window.read32(LIVENESS) == 0xEDCB_A987

    def master(self) -> None:
        """Let the device start transfers."""
        command = self.transport.config_read(4, 2)
        self.transport.config_write(4, command | BUS_MASTER, 2)

    def factorial(self, number: int) -> int:
        self.window.write32(FACTORIAL, number)
        self._wait(STATUS, 1, "factorial")
        return self.window.read32(FACTORIAL)

    def transfer(self, source: int, target: int, size: int, *, to_memory: bool) -> None:
        """One DMA, waited for. Fewer than 4096 bytes: QEMU before 8 ends on a whole buffer."""
        for register, value in (
            (DMA_SOURCE, source),
            (DMA_TARGET, target),
            (DMA_COUNT, size),
        ):
            self.window.write64(register, value)
        self.window.write64(DMA_COMMAND, START | (TO_MEMORY if to_memory else 0))
        self._wait(DMA_COMMAND, START, "transfer")

    def store(self, bus: int, size: int) -> None:
        """Copy from memory into the device."""
        self.transfer(bus, INTERNAL, size, to_memory=False)

    def load(self, bus: int, size: int) -> None:
        """Copy from the device into memory."""
        self.transfer(INTERNAL, bus, size, to_memory=True)

    def acknowledge(self) -> int:
        raised = self.window.read32(IRQ_STATUS)
        self.window.write32(IRQ_ACK, raised)
        return raised

    def _wait(self, register: int, bit: int, what: str) -> None:
        Clock().wait_until(
            lambda: not self.window.read32(register) & bit,
            unit="edu",
            waiting_for=what,
            limit_s=within(LIMIT_S),
        )
