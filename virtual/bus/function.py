"""A virtual card as a PCI function: a transport with windows, DMA memory and interrupts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from ugpu.hcq.errors import BadArgument, DeviceBusy
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.state.memory import BusAddr
from ugpu.hcq.transport.base import PciIdentity, ResetKind
from ugpu.hcq.transport.life import TransportLife, close_all
from ugpu.hcq.transport.pci.config import check_access
from ugpu.virtual.bus.config import COMMAND, ConfigSpace
from ugpu.virtual.bus.dma import DmaPool, HostMemory
from ugpu.virtual.bus.messages import MessageInterrupts
from ugpu.virtual.bus.window import BarWindow, check_value


class Card(Protocol):
    """A virtual card. msi: sends a vector's message to the attached transport, if any."""

    lock: threading.RLock
    msi: Callable[[int], object] | None

    @property
    def clock(self) -> Clock: ...
    @property
    def config(self) -> ConfigSpace: ...
    def power_cycle(self) -> None: ...
    def close(self) -> None: ...


C = TypeVar("C", bound=Card)


class PciFunction(TransportLife, Generic[C]):
    """One attachment to a card, as VFIO provides it; implements `hcq.transport.base.Transport`.

    As on a board, nothing is enabled at first: the driver sets memory space and bus master in the
    command register. `close` turns bus mastering off and frees all DMA memory. The card keeps its
    power, except with `owns_card`, where it is closed too. DeviceBusy while another attachment is
    open. windows: of the memory BARs. pool: of DMA memory.
    """

    def __init__(
        self, name: str, card: C, windows: Mapping[int, BarWindow], pool: DmaPool, *,
        owns_card: bool = False,
    ) -> None:  # fmt: skip
        if card.msi is not None:
            raise DeviceBusy(f"{name} is already attached", holder="this process")
        super().__init__(name)
        self.traits = replace(self.traits, resets=frozenset(ResetKind))
        self.clock = card.clock
        self._card = card
        self._pool = pool
        self._memory: dict[HostMemory, None] = {}
        self._windows = windows
        table = card.config.messages
        vectors = 1 if table is None else table.facts.vectors
        self._interrupts = MessageInterrupts(vectors, self._assign_messages)
        card.msi = self._interrupts.signal
        self._interrupts.restore()
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
    def chip(self) -> C:
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
        """Open a memory BAR."""
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
        return self._owned(self._pool.allocate(size, contiguous=contiguous))

    def place_dma(self, size: int, address: BusAddr) -> HostMemory:
        """See hcq.transport.base.Placing."""
        self.check_open()
        return self._owned(self._pool.place(size, int(address)))

    def _owned(self, memory: HostMemory) -> HostMemory:
        """Have `close` free memory, unless it was freed before."""
        self._memory[memory] = None
        memory.owners = self._memory
        return memory

    @property
    def interrupts(self) -> MessageInterrupts:
        """The function's message interrupts."""
        self.check_open()
        return self._interrupts

    def _assign_messages(self, count: int) -> None:
        with self._card.lock:
            self._card.config.assign_messages(range(count))

    def reset(self, kind: ResetKind) -> None:
        """Reset as an operating system does, which saves and restores BARs, command, vectors."""
        self.check_open()
        with self._card.lock:
            if kind is ResetKind.POWER:
                self._card.power_cycle()
                self._interrupts.restore()
                return
            config = self._card.config
            saved = config.snapshot()
            config.function_reset()
            config.restore(saved)
            self._interrupts.restore()

    def present(self) -> bool:
        """Return whether the vendor id still reads back."""
        return not self.closed and self._card.config.read(0, 2) != 0xFFFF

    def _silence(self) -> None:
        with self._card.lock:
            command = self._card.config.read(COMMAND, 2)
            self._card.config.write(COMMAND, command & ~0x4, 2)
            self._card.config.assign_messages(())
            self._card.msi = None
        self._interrupts.close()

    def _close_windows(self) -> None:
        close_all(self._windows.values())

    def _free_memory(self) -> None:
        close_all(list(self._memory))
        self._memory.clear()
