"""Parts of VRAM that the secure OS keeps for itself, and reports to drivers that ask.

Facts: Linux 6.18 amdgpu_psp.c (psp_update_fw_reservation) and psp_gfx_if.h: two commands without
parameters; a reservation at the end of VRAM, another one elsewhere. UNSURE: their sizes on boards.
The first is as large as the VBIOS states, which older drivers keep off.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ugpu.virtual.amd.board import Board

QUERY, QUERY_EXTENDED = 0x50, 0x51
_STEP = 64 << 10  # between marked pages
_PAGE = 4096
_PATTERN = bytes(at * 89 + 0x5A & 0xFF for at in range(_PAGE))
_RESPONSE = struct.Struct("<5I44xIII")  # status; at 64 the address, high half first, and the size


class Reservation:
    """What the secure OS of one card keeps. A page in sixteen has a pattern of its own: drivers
    must not write there, which `verify` reports."""

    def __init__(self, chip: Board) -> None:
        self._chip = chip
        self._marked: list[int] = []

    def parts(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return offset and size of the part at the end of VRAM and of the other one; sizes are 0
        where VRAM has no room."""
        size = self._chip.vram.size
        whole = min(self._chip.options.firmware_vram or self._chip.facts.generation.reserved_vram,
                    size // 2)  # fmt: skip
        below, extent = self._chip.options.firmware_vram_extended
        return (size - whole, whole), (size - below, extent) if extent else (0, 0)

    def answer(self, command: int) -> bytes:
        """Return the start of the response to a query."""
        address, size = self.parts()[command == QUERY_EXTENDED]
        return _RESPONSE.pack(0, 0, 0, 0, 0, address >> 32, address & 0xFFFF_FFFF, size)

    def mark(self) -> None:
        """Write the pattern, as the secure OS begins to use the memory. The trusted memory region
        and the pages around the discovery table are left out."""
        chip = self._chip
        table = chip.vram.size - (1 << 20)
        self._marked = [
            place
            for start, size in self.parts()
            for place in range(start, start + size, _STEP)
            if place < table and not chip.is_protected(place, _PAGE)
        ]
        for place in self._marked:
            chip.vram.write(place, _PATTERN)

    def verify(self) -> None:
        """Report marked pages that were overwritten, each once."""
        lost = [place for place in self._marked if self._chip.vram.read(place, _PAGE) != _PATTERN]
        if lost:
            self._marked = [place for place in self._marked if place not in lost]
            self._chip.violation(
                f"PSP: the firmware's reservation was overwritten at {lost[0]:#x}, "
                f"{len(lost)} marked pages in all"
            )

    def forget(self) -> None:
        """Forget the pattern: VRAM loses its content."""
        self._marked = []
