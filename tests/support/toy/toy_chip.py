"""The toy card's chip, as its driver on the kit (tests.support.toy.toy_driver) sees it: tables,
memory, registers, messages, rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from tests.support.toy import toy_card as toy
from ugpu.hcq.bare.bus import ALL_ONES
from ugpu.hcq.bare.chip import BareChip
from ugpu.hcq.bare.firmware import FirmwarePackage
from ugpu.hcq.bare.rest import Rest
from ugpu.hcq.bare.stages import or_silent
from ugpu.hcq.bare.vram import PAGE, WindowVram
from ugpu.hcq.errors import (
    FirmwareRejected,
)
from ugpu.hcq.paging.page_table import Level as TableLevel
from ugpu.hcq.transport.base import Transport

IN_USE, LEFT_CLEAN, RESTS = 0x70F00001, 0x70F00002, 0x70F00003
ANSWER_LIMIT_S = 0.5
PACKAGE = FirmwarePackage("toy", ("firmware-toy",), 1 << 16)
HEAP, HEAP_END = 0x20000, 14 << 20


@dataclass
class ToyFormat:
    """Two levels; a directory has leaves in its first words and pointers in its second ones."""

    levels: tuple[TableLevel, ...] = (TableLevel(21, 9, words=2, table_word=1), TableLevel(12, 9))
    leaf_levels: tuple[int, ...] = (0, 1)
    max_fragment = 0
    data_flags = toy.WRITABLE
    code_flags = 0
    host_flags = toy.HOST
    shared_flags = 0

    def leaf(
        self, level: int, physical: NDArray[np.uint64], flags: int, fragment: NDArray[np.uint64]
    ) -> NDArray[np.uint64]:
        return physical | np.uint64(toy.VALID | flags)

    def table(self, level: int, physical: int) -> int:
        return physical | toy.VALID | toy.TABLE

    def physical(self, level: int, entry: int) -> int:
        return entry & 0xFFFF_FFFF_F000

    def is_table(self, level: int, entry: int) -> bool:
        return bool(entry & toy.TABLE)

    def root(self, physical: int) -> int:
        return physical // PAGE


class ToyVram(WindowVram):
    """VRAM beyond the BAR, a dword at a time."""

    def __init__(self, chip: ToyChip) -> None:
        super().__init__(chip.transport.window(toy.VRAM_BAR), 0)
        self._bus = chip.bus

    def read_beyond(self, address: int, size: int) -> bytes:
        words = []
        for at in range(address, address + size, 4):
            self._bus.write32(toy.ADDRESS, at)
            words.append(self._bus.read32(toy.VRAM_DATA).to_bytes(4, "little"))
        return b"".join(words)

    def write_beyond(self, address: int, data: memoryview) -> None:
        for at in range(0, len(data), 4):
            self._bus.write32(toy.ADDRESS, address + at)
            self._bus.write32(toy.VRAM_DATA, int.from_bytes(data[at : at + 4], "little"))


class ToyChip(BareChip):
    """Registers and memory."""

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport, toy.REGISTER_BAR)
        self.bus.index_register, self.bus.data_register = toy.INDEX, toy.DATA
        self.doorbells = transport.window(toy.DOORBELL_BAR)
        self.vram = ToyVram(self)

    def silent(self) -> bool:
        return self.bus.read32(toy.ID) == self.bus.read32(toy.SIZE) == ALL_ONES

    def wait_ready(self) -> None:
        """Wait until registers answer, and learn the size of memory."""
        with or_silent("the card does not come out of its reset"):
            self.clock.wait_until(
                lambda: self.bus.read32(toy.ID) != ALL_ONES,
                unit="toy",
                waiting_for="registers",
                limit_s=ANSWER_LIMIT_S,
            )
        self.vram.size = self.bus.read32(toy.SIZE)

    def tell(self, message: int, argument: int) -> None:
        """Send the firmware a message. FirmwareSilent, FirmwareRejected."""
        self.bus.write32(toy.ARGUMENT, argument)
        self.bus.write32(toy.MESSAGE, message)
        with or_silent("the firmware does not answer", message_number=message):
            answer = self.clock.wait_until(
                lambda: self.bus.read32(toy.ANSWER) or None,
                unit="firmware",
                waiting_for=f"answer to message {message}",
                limit_s=ANSWER_LIMIT_S,
            )
        if answer != toy.OK:
            raise FirmwareRejected(f"the firmware answered {answer}", answer=answer)

    @property
    def runs(self) -> bool:
        """Return whether firmware runs."""
        return bool(self.bus.read32(toy.STATUS) & toy.RUNS)


class ToyRest(Rest):
    """Its cores lose their power by a message, and get it back by one."""

    def noted(self) -> bool:
        return self.chip.bus.read32(toy.NOTE) == RESTS

    def note_rest(self) -> None:
        self.chip.bus.write32(toy.NOTE, RESTS)

    def note_awake(self) -> None:
        self.chip.bus.write32(toy.NOTE, IN_USE)

    def allow(self) -> None:
        cast(ToyChip, self.chip).tell(toy.SLEEP, 0)

    def wake(self) -> None:
        cast(ToyChip, self.chip).tell(toy.WAKE, 0)

    def wake_found(self) -> None:
        self.wake()
        self.chip.bus.write32(toy.RESET, 1)
        self.chip.bus.write32(toy.NOTE, LEFT_CLEAN)

    def needs_power(self, index: int) -> bool:
        return toy.is_core(index)
