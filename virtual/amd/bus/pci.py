"""The virtual card as a PCI function: a transport with windows, DMA memory and interrupts."""

from __future__ import annotations

from dataclasses import replace

from ugpu.hcq.errors import BadArgument, DeviceBusy
from ugpu.hcq.state.instruction import Culprit
from ugpu.hcq.transport.base import PciIdentity, ResetKind
from ugpu.hcq.transport.life import TransportLife, close_all
from ugpu.hcq.transport.pci.config import check_access
from ugpu.virtual.amd.chip import Chip
from ugpu.virtual.bus.dma import HostMemory
from ugpu.virtual.bus.messages import MessageInterrupts
from ugpu.virtual.bus.window import ONES_32, BarWindow, check_value, refuse_value


class RegisterWindow(BarWindow):
    """BAR5: registers."""

    def __init__(self, chip: Chip, index: int) -> None:
        super().__init__(chip, index)
        self._chip = chip
        self._size = chip.options.registers

    @property
    def size(self) -> int:
        """Size in bytes of all registers."""
        return self._chip.options.registers

    def close(self) -> None:
        """Refuse further accesses; idempotent."""
        super().close()
        self._size = 0  # makes the bounds check of reads and writes fail, without a second check

    def read32(self, offset: int) -> int:
        """Read one register."""
        if offset & 3 or not 0 <= offset < self._size:
            self._check(offset, 4, 4)
        return self._chip.read_register(offset >> 2)

    def write32(self, offset: int, value: int) -> None:
        """Write one register."""
        if offset & 3 or not 0 <= offset < self._size:
            self._check(offset, 4, 4)
        if not 0 <= value <= ONES_32:
            refuse_value(value, 32)
        self._chip.write_register(offset >> 2, value)


class DoorbellWindow(BarWindow):
    """BAR2: doorbells. Writes reach the engines; reads give zero."""

    def __init__(self, chip: Chip, index: int) -> None:
        super().__init__(chip, index)
        self._chip = chip

    def read32(self, offset: int) -> int:
        """Read zero, or all ones if the card does not answer."""
        self._check(offset, 4, 4)
        return 0 if self._chip.answers() and not self._chip.dark else ONES_32

    def write32(self, offset: int, value: int) -> None:
        """Write one half of a doorbell."""
        self._ring(offset, value, 4)

    def write64(self, offset: int, value: int) -> None:
        """Write a doorbell in one access."""
        self._ring(offset, value, 8)

    def _ring(self, offset: int, value: int, width: int) -> None:
        self._check(offset, width, width)
        check_value(value, 8 * width)
        with self._chip.lock:
            if self._chip.answers() and not self._chip.dark:
                self._chip.nbio.doorbell(offset, value, width)


class VramWindow(BarWindow):
    """BAR0: VRAM through the host data path."""

    def __init__(self, chip: Chip, index: int) -> None:
        super().__init__(chip, index)
        self._chip = chip

    def _reaches(self, offset: int, size: int) -> bool:
        chip = self._chip
        return chip.answers() and not chip.dark and offset + size <= chip.vram.size

    def read32(self, offset: int) -> int:
        """Read a dword of VRAM."""
        self._check(offset, 4, 4)
        return int.from_bytes(self._read(offset, 4), "little")

    def write32(self, offset: int, value: int) -> None:
        """Write a dword of VRAM."""
        self._check(offset, 4, 4)
        check_value(value, 32)
        self._write(offset, value.to_bytes(4, "little"))

    def read64(self, offset: int) -> int:
        """Read a quadword of VRAM."""
        self._check(offset, 8, 8)
        return int.from_bytes(self._read(offset, 8), "little")

    def write64(self, offset: int, value: int) -> None:
        """Write a quadword of VRAM."""
        self._check(offset, 8, 8)
        check_value(value, 64)
        self._write(offset, value.to_bytes(8, "little"))

    def read(self, offset: int, size: int) -> bytes:
        """Read a block of VRAM."""
        self._check(offset, size, 4)
        return self._read(offset, size)

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write a block of VRAM."""
        content = bytes(data)
        self._check(offset, len(content), 4)
        self._write(offset, content)

    def _read(self, offset: int, size: int) -> bytes:
        with self._chip.lock:
            if not self._reaches(offset, size):
                return b"\xff" * size
            return self._chip.hdp.read(offset, size)

    def _write(self, offset: int, content: bytes) -> None:
        with self._chip.lock:
            if self._reaches(offset, len(content)):
                self._chip.hdp.write(offset, content)


class VirtualTransport(TransportLife):
    """One attachment to a chip, as VFIO provides it; implements `hcq.transport.base.Transport`.

    As on a board, nothing is enabled at first: the driver sets memory space and bus master in the
    command register. `close` turns bus mastering off and frees all DMA memory. The chip keeps its
    power, except with `owns_chip`, where it is closed too. DeviceBusy while another attachment is
    open.
    """

    def __init__(self, chip: Chip, name: str | None = None, *, owns_chip: bool = False) -> None:
        name = name or f"virtual:{chip.facts.name}"
        if chip.msi is not None:
            raise DeviceBusy(f"{name} is already attached", holder="this process")
        super().__init__(name)
        self.traits = replace(self.traits, resets=frozenset(ResetKind))
        self.clock = chip.clock
        self._chip = chip
        self._memory: dict[HostMemory, None] = {}
        self._windows: dict[int, BarWindow] = {
            0: VramWindow(chip, 0),
            2: DoorbellWindow(chip, 2),
            5: RegisterWindow(chip, 5),
        }
        self._interrupts = MessageInterrupts()
        chip.msi = self._interrupts.signal
        # ORDER: closing runs these in reverse: DMA stops before memory is freed.
        if owns_chip:
            self.at_end(chip.close)
        self.at_end(self._free_memory)
        self.at_end(self._close_windows, drop=self._close_windows)
        self.at_end(self._silence)
        word = chip.config.read
        self.identity = PciIdentity(
            vendor=word(0, 2),
            device=word(2, 2),
            revision=word(8, 1),
            subsystem_vendor=word(0x2C, 2),
            subsystem_device=word(0x2E, 2),
            class_code=word(8, 4) >> 8,
        )
        self.opened()

    @property
    def chip(self) -> Chip:
        """The attached card, for tests and fault injection."""
        return self._chip

    def config_read(self, offset: int, width: int = 4) -> int:
        """Read configuration space; all ones if the card is unplugged."""
        self.check_open()
        check_access(offset, width)
        with self._chip.lock:
            return self._chip.config.read(offset, width)

    def config_write(self, offset: int, value: int, width: int = 4) -> None:
        """Write configuration space."""
        self.check_open()
        check_access(offset, width)
        check_value(value, 8 * width)
        with self._chip.lock:
            self._chip.config.write(offset, value, width)

    def window(self, index: int) -> BarWindow:
        """Open BAR 0 (VRAM), 2 (doorbells) or 5 (registers)."""
        self.check_open()
        if index not in self._windows:
            raise BadArgument(
                f"index must be one of {sorted(self._windows)} (the memory BARs), got {index}",
                index=index,
            )
        return self._windows[index]

    def allocate_dma(self, size: int, *, contiguous: bool = False) -> HostMemory:
        """Allocate host memory; without `contiguous` it consists of runs of at most 2 MiB."""
        self.check_open()
        memory = self._chip.dma.allocate(size, contiguous=contiguous)
        self._memory[memory] = None
        memory.owners = self._memory
        return memory

    @property
    def interrupts(self) -> MessageInterrupts:
        """The function's message interrupts."""
        self.check_open()
        return self._interrupts

    def reset(self, kind: ResetKind) -> None:
        """Reset as an operating system does, which saves and restores BARs and command."""
        self.check_open()
        chip = self._chip
        with chip.lock:
            if kind is ResetKind.POWER:
                chip.power_cycle()
                return
            saved = chip.config.snapshot()
            chip.bus_reset()
            chip.config.restore(saved)

    def present(self) -> bool:
        """Return whether the vendor id still reads back."""
        return not self.closed and self._chip.config.read(0, 2) != 0xFFFF

    def culprit(self, *, address: int | None = None, pc: int | None = None) -> Culprit | None:
        """See hcq.state.instruction.Witness."""
        with self._chip.lock:
            return self._chip.culprits.take(address, pc)

    def _silence(self) -> None:
        with self._chip.lock:
            command = self._chip.config.read(4, 2)
            self._chip.config.write(4, command & ~0x4, 2)
            self._chip.msi = None
        self._interrupts.close()

    def _close_windows(self) -> None:
        close_all(self._windows.values())

    def _free_memory(self) -> None:
        close_all(list(self._memory))
        self._memory.clear()
