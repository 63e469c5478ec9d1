"""WPR2: the write-protected region of video memory, and the description of what it is to hold.

Source: open-gpu-kernel-modules 570.144 src/nvidia/arch/nvalloc/common/inc/gsp/gsp_fw_wpr_meta.h and
kernel_gsp_tu102.c (kgspCalculateFbLayout); Linux 7.3.4 nouveau nvkm/subdev/gsp/tu102.c.
"""

from __future__ import annotations

import itertools

from ugpu.hcq.registers.layout import Struct
from ugpu.nv.abi.firmware import firmware
from ugpu.virtual.nvidia.gsp.falcon.core import require

MAGIC, REVISION, VERIFIED = 0xDC3AAE21371A60B3, 1, 0xA0A0A0A0A0A0A0A0
SIZE = 0x100
RESUME_MAGIC = 0x8A3BB9E6C6C39D93
MIB = 1 << 20
FRTS_SIZE = MIB
_LEAST_HEAP = {2: 64 * MIB, 3: 84 * MIB}  # by libos; 88 MiB with 570's client part
PRESCRUBBED = 256 * MIB


_TABLES = "570.144"  # releases before it lack pmuReservedSize, and are otherwise the same
_EDGES = (
    ("nonWprHeapOffset", "nonWprHeapSize"), ("gspFwWprStart", ""),
    ("gspFwHeapOffset", "gspFwHeapSize"), ("gspFwOffset", "sizeOfRadix3Elf"),
    ("bootBinOffset", "sizeOfBootloader"), ("frtsOffset", "frtsSize"), ("gspFwWprEnd", ""),
    ("vgaWorkspaceOffset", ""),
)  # fmt: skip
_UNITS = {
    "gspFwWprStart": MIB, "gspFwHeapOffset": MIB, "gspFwHeapSize": MIB, "gspFwOffset": 0x10000,
    "bootBinOffset": 0x1000, "gspFwWprEnd": 0x20000, "nonWprHeapOffset": MIB, "nonWprHeapSize": MIB,
}  # fmt: skip
WprMeta = Struct  # GspFwWprMeta


def read(name: str, raw: bytes) -> Struct:
    """Read a structure of the boot; what follows it in `raw` is ignored."""
    block: Struct = firmware(_TABLES).structs[name].view(bytearray(raw))
    return block


def resumes(raw: bytes) -> bool:
    """Return whether a block describes a suspended GSP instead (GspFwSRMeta)."""
    return int.from_bytes(raw[:8], "little") == RESUME_MAGIC


def check(
    meta: WprMeta, memory: int, libos: int, frts: tuple[int, int] | None, scrubbed: int, code: int
) -> None:
    """Raise Refused with `code` for a layout that a booter refuses.

    memory: bytes of the card. frts: the region that FWSEC made, as (start, end); None for a chip
    without it. scrubbed: address from which memory is scrubbed.
    """
    start, size = meta.frtsOffset, meta.frtsSize
    known = (meta.magic, meta.revision) == (MAGIC, REVISION)
    require(known, code, f"magic {meta.magic:#x}, revision {meta.revision}")
    require(meta.fbSize == memory, code, f"fbSize must be {memory:#x}, is {meta.fbSize:#x}")
    if frts is None:
        require(not size, code, f"frtsSize must be 0 on this chip, is {size:#x}")
    else:
        text = f"FWSEC made {frts[0]:#x} to {frts[1]:#x}"
        given = f"frtsOffset and frtsSize say {start:#x} + {size:#x}"
        require((start, start + size) == frts, code, f"{given}, {text}")
    _check_order(meta, libos, scrubbed, code)


def _check_order(meta: WprMeta, libos: int, scrubbed: int, code: int) -> None:
    for (name, size_name), (after, _) in itertools.pairwise(_EDGES):
        size = meta[size_name] if size_name else SIZE if name == "gspFwWprStart" else 0
        text = f"{name} {meta[name]:#x} + {size:#x} runs into {after} {meta[after]:#x}"
        require(meta[name] + size <= meta[after], code, text)
    for name, unit in _UNITS.items():
        text = f"{name} must be a multiple of {unit:#x}, is {meta[name]:#x}"
        require(not meta[name] % unit, code, text)
    inside = meta.vgaWorkspaceOffset + meta.vgaWorkspaceSize <= meta.fbSize
    require(inside, code, "the VGA workspace is past the end of memory")
    least, heap = _LEAST_HEAP[libos], meta.gspFwHeapSize
    require(heap >= least, code, f"gspFwHeapSize must be at least {least:#x}, is {heap:#x}")
    start, reserved = meta.nonWprHeapOffset, meta.gspFwRsvdStart
    require(reserved == start, code, f"gspFwRsvdStart must be nonWprHeapOffset, is {reserved:#x}")
    text = f"memory below {scrubbed:#x} is not scrubbed; the layout starts at {start:#x}"
    require(start >= scrubbed, code, text)


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
