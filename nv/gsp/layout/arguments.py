"""Arguments of a start: WPR metadata, the manager's arguments, libos's list of regions, logs.

Structures are those of one firmware release (nv.abi.firmware). Sources: open-gpu-kernel-modules
570.144 kernel_gsp.c (kgspSetupLibosInitArgs, kgspSetupGspFmcArgs), message_queue_cpu.c,
gsp_fw_wpr_meta.h; Linux 7.3 nouveau rm/r535/gsp.c.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from ugpu.nv.abi.firmware import FirmwareAbi
from ugpu.nv.gsp.images.containers import BootLoader
from ugpu.nv.gsp.layout.framebuffer import FRTS_SIZE, Carveout
from ugpu.nv.gsp.layout.memory import PAGE

LOG_SIZE = 0x10000
# In this order. The firmware of both releases takes the list without the logs of later releases.
LOGS = ("LOGINIT", "LOGINTR", "LOGRM")
QUEUE_SIZE = 0x40000
SUSPEND_LEVEL = 3  # NV2080_CTRL_GPU_SET_POWER_STATE_GPU_LEVEL_3, as nouveau and RM say
PM_SUSPEND = 1 << 3  # GPU_STATE_FLAGS_PM_SUSPEND, as gpu_suspend.c has it
_PER_PAGE = 8
_VGA_SIZE = 0x20000  # where FMC chooses the places


def name_of(text: str) -> int:
    """Return a region's name as a number: its first character in the highest byte used."""
    return int.from_bytes(text.encode("ascii"), "big")


def region_list(abi: FirmwareAbi, regions: Mapping[str, tuple[int, int]]) -> bytes:
    """Return libos's list of regions. regions: address and size by name, in order."""
    layout, number = abi.structs.LibosMemoryRegionInitArgument, abi.constants
    out = bytearray()
    for name, (address, size) in regions.items():
        out += layout.new(
            id8=name_of(name),
            pa=address,
            size=size,
            kind=number.LIBOS_MEMORY_REGION_CONTIGUOUS,
            loc=number.LIBOS_MEMORY_REGION_LOC_SYSMEM,
        ).raw
    return bytes(out)


def log_header(pages: Sequence[int]) -> bytes:
    """Return what a log's buffer contains before the start: no entry, and its pages."""
    return struct.pack(f"<{len(pages) + 1}Q", 0, *pages)


def table_pages() -> int:
    """Return the number of pages of the table in front of the two queues; it names itself too."""
    queues = 2 * QUEUE_SIZE // PAGE
    count = 1
    while (queues + count) * _PER_PAGE > count * PAGE:
        count += 1
    return count


def manager_arguments(abi: FirmwareAbi, shared: int, *, resuming: bool = False) -> bytes:
    """Return GSP_ARGUMENTS_CACHED. shared: address of the table of pages and the queues."""
    block = abi.structs.GSP_ARGUMENTS_CACHED.new()
    queues = block.messageQueueInitArguments
    tables = table_pages()
    queues.sharedMemPhysAddr = shared
    queues.pageTableEntryCount = tables + 2 * QUEUE_SIZE // PAGE
    queues.cmdQueueOffset = tables * PAGE
    queues.statQueueOffset = tables * PAGE + QUEUE_SIZE
    if resuming:
        block.srInitArguments.oldLevel = SUSPEND_LEVEL
        block.srInitArguments.flags = PM_SUSPEND
        block.srInitArguments.bInPMTransition = 1
    if "bDmemStack" in abi.structs.GSP_ARGUMENTS_CACHED.fields:
        block.bDmemStack = 1
    return bytes(block.raw)


def wpr_metadata(
    abi: FirmwareAbi,
    parts: Mapping[str, tuple[int, int]],
    loader: BootLoader,
    places: Mapping[str, int],
) -> bytes:
    """Return GspFwWprMeta. parts: addresses on the bus, and sizes, of Radix3Elf (the tables and the
    image), Bootloader and Signature. places: of `placed` or `sized`."""
    number = abi.constants
    block = abi.structs.GspFwWprMeta.new(
        magic=number.GSP_FW_WPR_META_MAGIC,
        revision=number.GSP_FW_WPR_META_REVISION,
        bootloaderCodeOffset=loader.code,
        bootloaderDataOffset=loader.data_at,
        bootloaderManifestOffset=loader.manifest,
        **places,
    )
    for name, (address, size) in parts.items():
        block[f"sysmemAddrOf{name}"], block[f"sizeOf{name}"] = address, size
    return bytes(block.raw)


def placed(carveout: Carveout) -> dict[str, int]:
    """Return the fields of GspFwWprMeta where booter places the firmware as the driver says."""
    return {
        "gspFwRsvdStart": carveout.non_wpr,
        "nonWprHeapOffset": carveout.non_wpr,
        "nonWprHeapSize": carveout.non_wpr_size,
        "gspFwWprStart": carveout.wpr_start,
        "gspFwHeapOffset": carveout.heap,
        "gspFwHeapSize": carveout.heap_size,
        "gspFwOffset": carveout.image,
        "bootBinOffset": carveout.boot,
        "frtsOffset": carveout.frts,
        "frtsSize": carveout.frts_size,
        "gspFwWprEnd": carveout.wpr_end,
        "fbSize": carveout.vram,
        "vgaWorkspaceOffset": carveout.vga,
        "vgaWorkspaceSize": carveout.vram - carveout.vga,
    }


def sized(heap: int, non_wpr: int, pmu_reserved: int) -> dict[str, int]:
    """Return the fields of GspFwWprMeta where FMC chooses the places: sizes alone."""
    return {
        "gspFwHeapSize": heap,
        "nonWprHeapSize": non_wpr,
        "pmuReservedSize": pmu_reserved,
        "frtsSize": FRTS_SIZE,
        "vgaWorkspaceSize": _VGA_SIZE,
    }
