"""The card as a PCI function: a transport with windows, DMA memory and interrupts."""

from __future__ import annotations

from dataclasses import replace

from ugpu.hcq.errors import BadArgument, DeviceBusy
from ugpu.hcq.state.memory import BusAddr
from ugpu.hcq.transport.base import PciIdentity, ResetKind
from ugpu.hcq.transport.life import TransportLife, close_all
from ugpu.hcq.transport.pci.config import check_access
from ugpu.virtual.bus.dma import HostMemory
from ugpu.virtual.bus.messages import MessageInterrupts
from ugpu.virtual.bus.window import ONES_32, BarWindow, check_value, refuse_value
from ugpu.virtual.nvidia.gsp.apertures import Aperture
from ugpu.virtual.nvidia.gsp.card import Card


class RegisterWindow(BarWindow):
    """BAR0: registers."""

    def __init__(self, card: Card, index: int) -> None:
        super().__init__(card, index)
        self._chip = card
        self._size = card.config.bar_size(index)

    def read32(self, offset: int) -> int:
        """Read one register."""
        if offset & 3 or not 0 <= offset < self._size or self.closed:
            self._check(offset, 4, 4)
        return self._chip.read32(offset)

    def write32(self, offset: int, value: int) -> None:
        """Write one register."""
        if offset & 3 or not 0 <= offset < self._size or self.closed:
            self._check(offset, 4, 4)
        if not 0 <= value <= ONES_32:
            refuse_value(value, 32)
        self._chip.write32(offset, value)


class ApertureWindow(BarWindow):
    """BAR1 or BAR3: memory through an aperture."""

    def __init__(self, card: Card, index: int, aperture: Aperture) -> None:
        super().__init__(card, index)
        self._chip = card
        self._aperture = aperture

    def read32(self, offset: int) -> int:
        """Read a dword."""
        self._check(offset, 4, 4)
        return int.from_bytes(self._read(offset, 4), "little")

    def write32(self, offset: int, value: int) -> None:
        """Write a dword."""
        self._check(offset, 4, 4)
        check_value(value, 32)
        self._write(offset, value.to_bytes(4, "little"))

    def read64(self, offset: int) -> int:
        """Read a quadword."""
        self._check(offset, 8, 8)
        return int.from_bytes(self._read(offset, 8), "little")

    def write64(self, offset: int, value: int) -> None:
        """Write a quadword."""
        self._check(offset, 8, 8)
        check_value(value, 64)
        self._write(offset, value.to_bytes(8, "little"))

    def read(self, offset: int, size: int) -> bytes:
        """Read a block."""
        self._check(offset, size, 4)
        return self._read(offset, size)

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write a block."""
        content = bytes(data)
        self._check(offset, len(content), 4)
        self._write(offset, content)

    def read_bytes(self, offset: int, size: int) -> bytes:
        """Read any bytes inside."""
        self._check(offset, size, 1)
        return self._read(offset, size)

    def write_bytes(self, offset: int, data: bytes) -> None:
        """Write any bytes inside."""
        self._check(offset, len(data), 1)
        self._write(offset, data)

    def _read(self, offset: int, size: int) -> bytes:
        with self._chip.lock:
            if not self._chip.decodes:
                return b"\xff" * size
            self._chip.gpu.settle()
            return self._aperture.read(offset, size)

    def _write(self, offset: int, content: bytes) -> None:
        with self._chip.lock:
            if self._chip.decodes:
                self._aperture.write(offset, content)


class VirtualTransport(TransportLife):
    """One attachment to a card, as VFIO provides it; implements `hcq.transport.base.Transport`.

    As on a board, nothing is enabled at first: the driver sets memory space and bus master in the
    command register. `close` turns bus mastering off and frees all DMA memory. The card keeps its
    power, except with `owns_card`, where it is closed too. DeviceBusy while another attachment is
    open.
    """

    def __init__(self, card: Card, name: str | None = None, *, owns_card: bool = False) -> None:
        name = name or f"virtual:{card.facts.name}+gsp"
        if card.msi is not None:
            raise DeviceBusy(f"{name} is already attached", holder="this process")
        super().__init__(name)
        self.traits = replace(self.traits, resets=frozenset(ResetKind))
        self.clock = card.clock
        self._card = card
        self._memory: dict[HostMemory, None] = {}
        self._windows: dict[int, BarWindow] = {
            0: RegisterWindow(card, 0),
            1: ApertureWindow(card, 1, card.bar1),
            3: ApertureWindow(card, 3, card.bar2),
        }
        self._interrupts = MessageInterrupts()
        card.msi = self._interrupts.signal
        # ORDER: closing runs these in reverse: DMA stops before memory is freed.
        if owns_card:
            self.at_end(card.close)
        self.at_end(self._free_memory)
        self.at_end(self._close_windows, drop=self._close_windows)
        self.at_end(self._silence)
        word = card.config.read
        self.identity = PciIdentity(
            vendor=word(0, 2), device=word(2, 2), revision=word(8, 1),
            subsystem_vendor=word(0x2C, 2), subsystem_device=word(0x2E, 2),
            class_code=word(8, 4) >> 8,
        )  # fmt: skip
        self.opened()

    @property
    def card(self) -> Card:
        """The attached card, for tests and fault injection."""
        return self._card

    def config_read(self, offset: int, width: int = 4) -> int:
        """Read configuration space; all ones if the card is unplugged."""
        self.check_open()
        check_access(offset, width)
        with self._card.lock:
            return self._card.config.read(offset, width)

    def config_write(self, offset: int, value: int, width: int = 4) -> None:
        """Write configuration space."""
        self.check_open()
        check_access(offset, width)
        check_value(value, 8 * width)
        with self._card.lock:
            self._card.config.write(offset, value, width)

    def window(self, index: int) -> BarWindow:
        """Open BAR 0 (registers), 1 (video memory) or 3 (instance memory)."""
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
        memory = self._card.bus.pool.allocate(size, contiguous=contiguous)
        self._memory[memory] = None
        memory.owners = self._memory
        return memory

    def place_dma(self, size: int, address: BusAddr) -> HostMemory:
        """See hcq.transport.base.Placing."""
        self.check_open()
        memory = self._card.bus.pool.place(size, int(address))
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
        card = self._card
        with card.lock:
            if kind is ResetKind.POWER:
                card.power_cycle()
                return
            saved = card.config.snapshot()
            card.function_reset()
            card.config.restore(saved)

    def present(self) -> bool:
        """Return whether the vendor id still reads back."""
        return not self.closed and self._card.config.read(0, 2) != 0xFFFF

    def _silence(self) -> None:
        with self._card.lock:
            command = self._card.config.read(4, 2)
            self._card.config.write(4, command & ~0x4, 2)
            self._card.msi = None
        self._interrupts.close()

    def _close_windows(self) -> None:
        close_all(self._windows.values())

    def _free_memory(self) -> None:
        close_all(list(self._memory))
        self._memory.clear()
