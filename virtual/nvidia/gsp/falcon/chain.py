"""What the FMC does on the GSP: reads its boot parameters, lays out WPR2, and starts the firmware.

Sources: open-gpu-kernel-modules 570.144 gspifpub.h (GSP_FMC_BOOT_PARAMS), kernel_gsp_gh100.c
(kgspSetupGspFmcArgs, kgspCalculateFbLayout_GH100); Linux 7.3.4 nouveau nvkm/subdev/gsp/gh100.c.
UNSURE: the codes in mailbox 0.
"""

from __future__ import annotations

from typing import Protocol

from ugpu.virtual.nvidia.gsp.facts import BootFacts
from ugpu.virtual.nvidia.gsp.falcon import booter, sleep, wpr
from ugpu.virtual.nvidia.gsp.falcon.core import Refused
from ugpu.virtual.nvidia.gsp.falcon.wpr import FRTS_SIZE as FRTS_SIZE
from ugpu.virtual.nvidia.gsp.falcon.wpr import MAGIC, MIB, REVISION, SIZE, WprMeta

PARAMETERS = 0x50
_SYSTEM = (1, 2)  # coherent and non-coherent memory of the host
_OTHER_HEAP = {"gh100": 0x20_0000, "gb202": 0x22_0000}
_PMU = {"gh100": 0, "gb202": 0x182_0000}
_PLACES = (
    "gspFwWprStart", "gspFwHeapOffset", "gspFwOffset", "bootBinOffset", "frtsOffset", "gspFwWprEnd",
    "nonWprHeapOffset",
)  # fmt: skip


class Board(booter.Board, Protocol):
    """The card, as the FMC uses it."""

    def release(self, *, lockdown: bool) -> None:
        """Release the target mask of the GSP's registers; with `lockdown` also the lockdown."""
        ...


def start(board: Board, arguments: int, frts: int) -> None:
    """Verify the parameters and start the firmware. Raises Refused."""
    raw = board.bus_read(arguments, PARAMETERS)
    if raw is None:
        raise Refused(0x01, f"cannot read the boot parameters at {arguments:#x}")
    params = wpr.read("GSP_FMC_BOOT_PARAMS", raw)
    boot, rm = params.bootGspRmParams, params.gspRmParams
    size, where, is_rm = boot.gspRmDescSize, boot.gspRmDescOffset, boot.bIsGspRmBoot
    if boot.target not in _SYSTEM or rm.target not in _SYSTEM:
        raise Refused(0x02, f"targets must be 1 or 2, are {boot.target} and {rm.target}")
    if size != SIZE or is_rm != 1:
        raise Refused(0x03, f"gspRmDescSize must be {SIZE:#x}, is {size:#x}; bIsGspRmBoot {is_rm}")
    meta_raw = board.bus_read(where, SIZE)
    if meta_raw is None:
        raise Refused(0x04, f"cannot read the WPR metadata at {where:#x}")
    resuming = wpr.resumes(meta_raw)
    if resuming != (frts == board.memory_size):
        raise Refused(0x08, "only firmware that resumes has its FRTS region")
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
        if meta[name] != expected:
            raise Refused(0x05, f"{name} must be {expected:#x}, is {meta[name]:#x}")
    if any(meta[name] for name in _PLACES):
        raise Refused(0x06, "offsets must be 0: the FMC places everything")
    if meta.gspFwHeapSize < 84 * MIB or meta.gspFwHeapSize % MIB:
        raise Refused(0x07, f"gspFwHeapSize {meta.gspFwHeapSize:#x}")
    meta.frtsOffset, meta.fbSize = frts, memory
    meta.gspFwWprEnd = meta.vgaWorkspaceOffset = frts + FRTS_SIZE
    meta.bootBinOffset = frts - meta.sizeOfBootloader & ~0xFFF
    meta.gspFwOffset = meta.bootBinOffset - meta.sizeOfRadix3Elf & ~0xFFFF
    meta.gspFwHeapOffset = meta.gspFwOffset - meta.gspFwHeapSize & ~(MIB - 1)
    meta.gspFwWprStart = meta.gspFwHeapOffset - SIZE & ~(MIB - 1)
    other = meta.gspFwWprStart - meta.nonWprHeapSize & ~(MIB - 1)
    meta.gspFwRsvdStart = meta.nonWprHeapOffset = other
