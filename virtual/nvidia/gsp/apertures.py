"""The CPU's ways to video memory: the PRAMIN window, BAR1 and BAR2 (in BAR3).

BAR1 and BAR2 are physical until their blocks name an instance block; then each access is translated
by page tables, and translations stay in use until they are invalidated. Source:
open-gpu-kernel-modules 570.144 dev_bus.h, dev_vm.h, kern_bus_gm107.c, kern_bus_tu102.c,
kern_bus_gh100.c.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from ugpu.virtual.nvidia.chip import VirtualGpu
from ugpu.virtual.nvidia.memory.faults import Client, FaultAccess
from ugpu.virtual.nvidia.memory.space import AddressSpace, Translation

if TYPE_CHECKING:
    from ugpu.virtual.nvidia.gsp.card import Card

PDB_IN_INSTANCE = 0x200
_VIRTUAL = 1 << 31
_PAGE = 4096


class Aperture:
    """BAR1, BAR2 or PRAMIN. block: as its register was last written; PRAMIN stays physical."""

    def __init__(self, card: Card, name: str) -> None:
        self.name = name
        self._card = card
        self._space: AddressSpace | None = None
        self.block = 0

    def set_block(self, block: int) -> None:
        """Handle a write of the block register: instance block >> 12, and bit 31 for virtual."""
        self.block = block
        self.close()
        if block & _VIRTUAL:
            instance = (block & 0x0FFF_FFFF) << 12
            space = self._card.gpu.new_space()
            space.set_directory(directory_of(self._card.gpu, instance))
            self._space = space

    @property
    def space(self) -> AddressSpace | None:
        """The address space; None if the aperture is physical."""
        return self._space

    def close(self) -> None:
        """Drop the address space."""
        if self._space is not None:
            self._space.close()
            self._space = None

    def place(self, offset: int, size: int, access: FaultAccess) -> tuple[int, int] | None:
        """Return the address in this process of an offset, and how many bytes follow; None, and a
        note, if the access faults."""
        card, memory = self._card, self._card.gpu.memory
        if self._space is None:
            left = memory.size - offset
            found = (memory.base + offset, min(size, left)) if left > 0 else None
        else:
            translated = self._space.translate(offset, access, Client.HOST)
            if isinstance(translated, Translation):
                inside = offset - translated.virtual
                found = (translated.host + inside, min(size, translated.size - inside))
            else:
                card.note(f"{self.name}: {translated}")
                return None
        if found is None:
            card.note(f"{self.name}: {offset:#x} is past the end of video memory")
        elif card.wpr.touches(found[0] - memory.base, found[1]):
            card.note(f"{self.name}: {offset:#x} lies in the write-protected region")
            return None
        return found

    def read(self, offset: int, size: int) -> bytes:
        """Read; what faults reads as all ones."""
        out = []
        while size:
            part = min(size, _PAGE - offset % _PAGE)
            found = self.place(offset, part, FaultAccess.READ)
            out.append(ctypes.string_at(*found) if found is not None else b"\xff" * part)
            offset, size = offset + part, size - part
        return b"".join(out)

    def write(self, offset: int, content: bytes) -> None:
        """Write; what faults is dropped."""
        while content:
            part = min(len(content), _PAGE - offset % _PAGE)
            found = self.place(offset, part, FaultAccess.WRITE)
            if found is not None:
                ctypes.memmove(found[0], content[:part], part)
            offset, content = offset + part, content[part:]


def directory_of(gpu: VirtualGpu, instance: int) -> int:
    """Return the page directory that an instance block in video memory names; 0 for none."""
    if instance + PDB_IN_INSTANCE + 8 > gpu.memory.size:
        return 0
    word = int(gpu.memory.words[(instance + PDB_IN_INSTANCE) // 8])
    return word & (1 << 52) - _PAGE
