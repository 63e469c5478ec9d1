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
from ugpu.nv.gsp.layout.memory import PAGE

LOG_SIZE = 0x10000
# In this order. The firmware of both releases takes the list without the logs of later releases.
LOGS = ("LOGINIT", "LOGINTR", "LOGRM")
QUEUE_SIZE = 0x40000
REGION_SIZE = PAGE + 2 * QUEUE_SIZE  # of both queues, and of the table of the region's pages
SUSPEND_LEVEL = 3  # NV2080_CTRL_GPU_SET_POWER_STATE_GPU_LEVEL_3, as nouveau and RM say
PM_SUSPEND = 1 << 3  # GPU_STATE_FLAGS_PM_SUSPEND, as gpu_suspend.c has it


def region_list(abi: FirmwareAbi, regions: Mapping[str, tuple[int, int]]) -> bytes:
    """Return libos's list of regions. regions: address and size by name, in order; of a name, the
    first character is in the highest byte used."""
    layout, number = abi.structs.LibosMemoryRegionInitArgument, abi.constants
    out = bytearray()
    for name, (address, size) in regions.items():
        out += layout.new(
            id8=int.from_bytes(name.encode("ascii"), "big"),
            pa=address,
            size=size,
            kind=number.LIBOS_MEMORY_REGION_CONTIGUOUS,
            loc=number.LIBOS_MEMORY_REGION_LOC_SYSMEM,
        ).raw
    return bytes(out)


def log_header(pages: Sequence[int]) -> bytes:
    """Return what a log's buffer contains before the start: no entry, and its pages."""
    return struct.pack(f"<{len(pages) + 1}Q", 0, *pages)


def manager_arguments(abi: FirmwareAbi, shared: int, *, resuming: bool = False) -> bytes:
    """Return GSP_ARGUMENTS_CACHED. shared: address of the table of pages and the queues."""
    block = abi.structs.GSP_ARGUMENTS_CACHED.new()
    queues = block.messageQueueInitArguments
    queues.sharedMemPhysAddr = shared
    queues.pageTableEntryCount = REGION_SIZE // PAGE
    queues.cmdQueueOffset = PAGE
    queues.statQueueOffset = PAGE + QUEUE_SIZE
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
    image), Bootloader and Signature. places: of layout.framebuffer."""
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
