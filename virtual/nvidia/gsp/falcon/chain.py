"""What the FMC does on the GSP: reads its boot parameters, lays out WPR2, and starts the firmware.

Sources: open-gpu-kernel-modules 570.144 gspifpub.h (GSP_FMC_BOOT_PARAMS), kernel_gsp_gh100.c
(kgspSetupGspFmcArgs, kgspCalculateFbLayout_GH100); Linux 7.3.4 nouveau nvkm/subdev/gsp/gh100.c.
UNSURE: the codes in mailbox 0.
"""

from __future__ import annotations

import struct
from typing import Protocol

from ugpu.virtual.nvidia.gsp.facts import BootFacts
from ugpu.virtual.nvidia.gsp.falcon import booter, sleep
from ugpu.virtual.nvidia.gsp.falcon.core import Refused
from ugpu.virtual.nvidia.gsp.falcon.wpr import FRTS_SIZE as FRTS_SIZE
from ugpu.virtual.nvidia.gsp.falcon.wpr import MAGIC, MIB, REVISION, SIZE, WprMeta

PARAMETERS = 0x50
_SYSTEM = (1, 2)  # coherent and non-coherent memory of the host
_OTHER_HEAP = {"gh100": 0x20_0000, "gb202": 0x22_0000}
_PMU = {"gh100": 0, "gb202": 0x182_0000}
_PMU_AT = 0xF4


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
    target, size, where = _description(raw)
    (is_rm,) = struct.unpack_from("<B", raw, 0x24)
    rm_target, libos = struct.unpack_from("<I4xQ", raw, 0x28)
    if target not in _SYSTEM or rm_target not in _SYSTEM:
        raise Refused(0x02, f"targets must be 1 or 2, are {target} and {rm_target}")
    if size != SIZE or is_rm != 1:
        raise Refused(0x03, f"gspRmDescSize must be {SIZE:#x}, is {size:#x}; bIsGspRmBoot {is_rm}")
    meta_raw = board.bus_read(where, SIZE)
    if meta_raw is None:
        raise Refused(0x04, f"cannot read the WPR metadata at {where:#x}")
    if WprMeta.resume(meta_raw):
        if frts != board.memory_size:
            raise Refused(0x08, "firmware that resumes has its FRTS region")
        firmware = sleep.restore(board, where)
        board.gsp.answer(0)
        board.release(lockdown=True)
        board.resume_gsp(firmware, libos)
        return
    if frts == board.memory_size:
        raise Refused(0x08, "no FRTS region")
    meta = laid_out(board.boot, WprMeta.parse(meta_raw), meta_raw, frts, board.memory_size)
    version = booter.place(board, meta)
    board.wpr.set(meta.start, meta.end)
    board.gsp.answer(0)
    board.release(lockdown=True)
    board.start_gsp(meta, version, libos)


def _description(raw: bytes) -> tuple[int, int, int]:
    target, size, where = struct.unpack_from("<IIQ", raw, 8)
    return int(target), int(size), int(where)


def laid_out(boot: BootFacts, meta: WprMeta, raw: bytes, frts: int, memory: int) -> WprMeta:
    """Check the sizes that the host gave, and place everything below FRTS. Raises Refused."""
    (pmu,) = struct.unpack_from("<I", raw, _PMU_AT)
    for name, value, expected in (
        ("magic", meta.magic, MAGIC), ("revision", meta.revision, REVISION),
        ("frtsSize", meta.frts_size, FRTS_SIZE),
        ("nonWprHeapSize", meta.other_heap_size, _OTHER_HEAP[boot.name]),
        ("pmuReservedSize", pmu, _PMU[boot.name]),
    ):  # fmt: skip
        if value != expected:
            raise Refused(0x05, f"{name} must be {expected:#x}, is {value:#x}")
    given = (meta.start, meta.heap, meta.firmware, meta.boot, meta.frts, meta.end, meta.other_heap)
    if any(given):
        raise Refused(0x06, "offsets must be 0: the FMC places everything")
    if meta.heap_size < 84 * MIB or meta.heap_size % MIB:
        raise Refused(0x07, f"gspFwHeapSize {meta.heap_size:#x}")
    binary = frts - meta.bootloader_size & ~0xFFF
    firmware = binary - meta.image_size & ~0xFFFF
    heap = firmware - meta.heap_size & ~(MIB - 1)
    start = heap - SIZE & ~(MIB - 1)
    other = start - meta.other_heap_size & ~(MIB - 1)
    return meta._replace(
        reserved_start=other, other_heap=other, start=start, heap=heap, firmware=firmware,
        boot=binary, frts=frts, end=frts + FRTS_SIZE, memory=memory, vga=frts + FRTS_SIZE,
    )  # fmt: skip
