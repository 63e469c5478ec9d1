"""What the FMC does on the GSP: reads its boot parameters, lays out WPR2, and starts the firmware.

Sources: open-gpu-kernel-modules 570.144 gspifpub.h (GSP_FMC_BOOT_PARAMS), kernel_gsp_gh100.c
(kgspSetupGspFmcArgs, kgspCalculateFbLayout_GH100); Linux 7.3.4 nouveau nvkm/subdev/gsp/gh100.c.
UNSURE: the codes in mailbox 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ugpu.virtual.nvidia.gsp.facts import BootFacts
from ugpu.virtual.nvidia.gsp.falcon import booter, radix3, sleep, wpr
from ugpu.virtual.nvidia.gsp.falcon.core import require
from ugpu.virtual.nvidia.gsp.falcon.wpr import FRTS_SIZE as FRTS_SIZE
from ugpu.virtual.nvidia.gsp.falcon.wpr import MAGIC, MIB, REVISION, SIZE, WprMeta

if TYPE_CHECKING:
    from ugpu.virtual.nvidia.gsp.card import Card

PARAMETERS = 0x50
_SYSTEM = {1, 2}  # coherent and non-coherent memory of the host
_OTHER_HEAP = {"gh100": 0x20_0000, "gb202": 0x22_0000}
_PMU = {"gh100": 0, "gb202": 0x182_0000}
_PLACES = (
    "gspFwWprStart", "gspFwHeapOffset", "gspFwOffset", "bootBinOffset", "frtsOffset", "gspFwWprEnd",
    "nonWprHeapOffset",
)  # fmt: skip


def start(board: Card, arguments: int, frts: int) -> None:
    """Verify the parameters and start the firmware. Raises Refused."""
    raw = radix3.need(board, arguments, PARAMETERS, 0x01)
    params = wpr.read("GSP_FMC_BOOT_PARAMS", raw)
    boot, rm = params.bootGspRmParams, params.gspRmParams
    size, where, is_rm = boot.gspRmDescSize, boot.gspRmDescOffset, boot.bIsGspRmBoot
    of_host, fits = {boot.target, rm.target} <= _SYSTEM, size == SIZE and is_rm == 1
    require(of_host, 0x02, f"targets must be 1 or 2, are {boot.target} and {rm.target}")
    require(fits, 0x03, f"gspRmDescSize must be {SIZE:#x}, is {size:#x}; bIsGspRmBoot {is_rm}")
    meta_raw = radix3.need(board, where, SIZE, 0x04)
    resuming, has_region = wpr.resumes(meta_raw), frts == board.memory_size
    require(resuming == has_region, 0x08, "only firmware that resumes has its FRTS region")
    if resuming:
        firmware = sleep.restore(board, where)
        board.gsp.answer(0)
        board.release(lockdown=True)
        board.resume_gsp(firmware)
        return
    meta = wpr.read("GspFwWprMeta", meta_raw)
    lay_out(board.boot, meta, frts, board.memory_size)
    version = booter.place(board, meta)
    board.wpr.set(meta.gspFwWprStart, meta.gspFwWprEnd)
    board.gsp.answer(0)
    board.release(lockdown=True)
    board.start_gsp(meta, version, rm.bootArgsOffset)


def lay_out(boot: BootFacts, meta: WprMeta, frts: int, memory: int) -> None:
    """Check the sizes that the host gave, and place everything below FRTS. Raises Refused."""
    for name, expected in (
        ("magic", MAGIC), ("revision", REVISION), ("frtsSize", FRTS_SIZE),
        ("nonWprHeapSize", _OTHER_HEAP[boot.name]), ("pmuReservedSize", _PMU[boot.name]),
    ):  # fmt: skip
        fits = meta[name] == expected
        require(fits, 0x05, f"{name} must be {expected:#x}, is {meta[name]:#x}")
    unplaced = not any(meta[name] for name in _PLACES)
    require(unplaced, 0x06, "offsets must be 0: the FMC places everything")
    enough = meta.gspFwHeapSize >= 84 * MIB and not meta.gspFwHeapSize % MIB
    require(enough, 0x07, f"gspFwHeapSize {meta.gspFwHeapSize:#x}")
    meta.frtsOffset, meta.fbSize = frts, memory
    meta.gspFwWprEnd = meta.vgaWorkspaceOffset = frts + FRTS_SIZE
    meta.bootBinOffset = frts - meta.sizeOfBootloader & ~0xFFF
    meta.gspFwOffset = meta.bootBinOffset - meta.sizeOfRadix3Elf & ~0xFFFF
    meta.gspFwHeapOffset = meta.gspFwOffset - meta.gspFwHeapSize & ~(MIB - 1)
    meta.gspFwWprStart = meta.gspFwHeapOffset - SIZE & ~(MIB - 1)
    other = meta.gspFwWprStart - meta.nonWprHeapSize & ~(MIB - 1)
    meta.gspFwRsvdStart = meta.nonWprHeapOffset = other
