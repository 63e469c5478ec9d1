"""WPR2: the write-protected region of video memory, and the description of what it is to hold.

Source: open-gpu-kernel-modules 570.144 src/nvidia/arch/nvalloc/common/inc/gsp/gsp_fw_wpr_meta.h and
kernel_gsp_tu102.c (kgspCalculateFbLayout); Linux 7.3.4 nouveau nvkm/subdev/gsp/tu102.c.
"""

from __future__ import annotations

import itertools
import struct
from typing import NamedTuple

MAGIC, REVISION, VERIFIED = 0xDC3AAE21371A60B3, 1, 0xA0A0A0A0A0A0A0A0
SIZE = 0x100
RESUME_MAGIC = 0x8A3BB9E6C6C39D93
MIB = 1 << 20
_FIELDS = struct.Struct("<25Q")
FRTS_SIZE = MIB
_LEAST_HEAP = {2: 64 * MIB, 3: 84 * MIB}  # by libos; 88 MiB with 570's client part
PRESCRUBBED = 256 * MIB


class WprMeta(NamedTuple):
    """GspFwWprMeta, in the order of its fields."""

    magic: int
    revision: int
    image: int
    image_size: int
    bootloader: int
    bootloader_size: int
    bootloader_code: int
    bootloader_data: int
    bootloader_manifest: int
    signature: int
    signature_size: int
    reserved_start: int
    other_heap: int
    other_heap_size: int
    start: int
    heap: int
    heap_size: int
    firmware: int
    boot: int
    frts: int
    frts_size: int
    end: int
    memory: int
    vga: int
    vga_size: int

    @classmethod
    def parse(cls, raw: bytes) -> WprMeta:
        """Read the first 0xc8 bytes of a block."""
        return cls._make(_FIELDS.unpack_from(raw))

    @classmethod
    def resume(cls, raw: bytes) -> bool:
        """Return whether a block describes a suspended GSP instead (GspFwSRMeta)."""
        return int.from_bytes(raw[:8], "little") == RESUME_MAGIC

    def problem(self, memory: int, libos: int, frts: tuple[int, int] | None, scrubbed: int) -> str:
        """Return why a booter refuses the layout, or "".

        memory: bytes of the card. frts: the region that FWSEC made, as (start, end); None for a
        chip without it. scrubbed: address from which memory is scrubbed.
        """
        if self.magic != MAGIC or self.revision != REVISION:
            return f"magic {self.magic:#x}, revision {self.revision}"
        if self.memory != memory:
            return f"fbSize must be {memory:#x}, is {self.memory:#x}"
        if frts is not None and (self.frts, self.frts + self.frts_size) != frts:
            return (
                f"frtsOffset and frtsSize say {self.frts:#x} + {self.frts_size:#x}, FWSEC made "
                f"{frts[0]:#x} to {frts[1]:#x}"
            )
        if frts is None and self.frts_size:
            return f"frtsSize must be 0 on this chip, is {self.frts_size:#x}"
        return self._order(libos, scrubbed)

    def _order(self, libos: int, scrubbed: int) -> str:
        edges = (
            ("nonWprHeapOffset", self.other_heap, self.other_heap_size),
            ("gspFwWprStart", self.start, SIZE),
            ("gspFwHeapOffset", self.heap, self.heap_size),
            ("gspFwOffset", self.firmware, self.image_size),
            ("bootBinOffset", self.boot, self.bootloader_size),
            ("frtsOffset", self.frts, self.frts_size),
            ("gspFwWprEnd", self.end, 0),
            ("vgaWorkspaceOffset", self.vga, 0),
        )
        for (name, start, size), (after, following, _) in itertools.pairwise(edges):
            if start + size > following:
                return f"{name} {start:#x} + {size:#x} runs into {after} {following:#x}"
        for name, value, unit in (
            ("gspFwWprStart", self.start, MIB), ("gspFwHeapOffset", self.heap, MIB),
            ("gspFwHeapSize", self.heap_size, MIB), ("gspFwOffset", self.firmware, 0x10000),
            ("bootBinOffset", self.boot, 0x1000), ("gspFwWprEnd", self.end, 0x20000),
            ("nonWprHeapOffset", self.other_heap, MIB),
            ("nonWprHeapSize", self.other_heap_size, MIB),
        ):  # fmt: skip
            if value % unit:
                return f"{name} must be a multiple of {unit:#x}, is {value:#x}"
        if self.vga + self.vga_size > self.memory:
            return "the VGA workspace is past the end of memory"
        if self.heap_size < _LEAST_HEAP[libos]:
            return f"gspFwHeapSize must be at least {_LEAST_HEAP[libos]:#x}, is {self.heap_size:#x}"
        if self.reserved_start != self.other_heap:
            return f"gspFwRsvdStart must be nonWprHeapOffset, is {self.reserved_start:#x}"
        if self.other_heap < scrubbed:
            start = self.other_heap
            return f"memory below {scrubbed:#x} is not scrubbed; the layout starts at {start:#x}"
        return ""


class Wpr2:
    """The region, as its registers show it. Empty: both are 0."""

    def __init__(self) -> None:
        self.start = self.end = 0

    @property
    def up(self) -> bool:
        """Whether the region is set."""
        return self.end != 0

    def set(self, start: int, end: int) -> None:
        """Protect [start, end)."""
        self.start, self.end = start, end

    def clear(self) -> None:
        """Protect nothing."""
        self.start = self.end = 0

    def touches(self, address: int, size: int) -> bool:
        """Return whether a range touches the region."""
        return address < self.end and self.start < address + size

    @property
    def low(self) -> int:
        """NV_PFB_PRI_MMU_WPR2_ADDR_LO: address >> 12 in bits 31:4."""
        return self.start >> 12 << 4

    @property
    def high(self) -> int:
        """NV_PFB_PRI_MMU_WPR2_ADDR_HI; the end is exclusive."""
        return self.end >> 12 << 4
