"""The virtual card as a PCI function: its windows, and a transport with them."""

from __future__ import annotations

from ugpu.hcq.state.instruction import Culprit
from ugpu.virtual.amd.chip import Chip
from ugpu.virtual.bus.function import PciFunction
from ugpu.virtual.bus.window import ONES_32, BarWindow, MemoryWindow, RegisterWindow, check_value


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


class VramWindow(MemoryWindow):
    """BAR0: VRAM through the host data path."""

    def __init__(self, chip: Chip, index: int) -> None:
        super().__init__(chip, index)
        self._chip = chip

    def _reaches(self, offset: int, size: int) -> bool:
        chip = self._chip
        return chip.answers() and not chip.dark and offset + size <= chip.vram.size

    def _read(self, offset: int, size: int) -> bytes:
        with self._chip.lock:
            if not self._reaches(offset, size):
                return b"\xff" * size
            return self._chip.hdp.read(offset, size)

    def _write(self, offset: int, content: bytes) -> None:
        with self._chip.lock:
            if self._reaches(offset, len(content)):
                self._chip.hdp.write(offset, content)


def windows_of(chip: Chip) -> dict[int, BarWindow]:
    """Return new windows of all memory BARs: VRAM, doorbells, registers."""
    registers = RegisterWindow(chip, 5, chip.read_register, chip.write_register, shift=2)
    return {0: VramWindow(chip, 0), 2: DoorbellWindow(chip, 2), 5: registers}


class VirtualTransport(PciFunction[Chip]):
    """One attachment to a chip."""

    def __init__(self, chip: Chip, name: str | None = None, *, owns_chip: bool = False) -> None:
        name = name or f"virtual:{chip.facts.name}"
        super().__init__(name, chip, windows_of(chip), chip.dma, owns_card=owns_chip)

    def culprit(self, *, address: int | None = None, pc: int | None = None) -> Culprit | None:
        """See hcq.state.instruction.Witness."""
        with self._card.lock:
            return self._card.culprits.take(address, pc)
