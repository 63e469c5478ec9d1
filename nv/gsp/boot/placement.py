"""Step "layout": VRAM's size, the carve-out at its end, and the memory that the GSP starts from."""

from __future__ import annotations

from ugpu.hcq.errors import ChipError, NotSupported
from ugpu.nv.chips.boot import BootWay
from ugpu.nv.gsp.boot.start import Start
from ugpu.nv.gsp.chip.chip import GspChip
from ugpu.nv.gsp.layout.arguments import (
    LOG_SIZE,
    LOGS,
    REGION_SIZE,
    log_header,
    manager_arguments,
    region_list,
    wpr_metadata,
)
from ugpu.nv.gsp.layout.framebuffer import FRTS_SIZE, carve_out, heap_size, sized, vga_workspace
from ugpu.nv.gsp.layout.memory import PAGE, Pages

MIB = 1 << 20
_MOST_VRAM = 1 << 40  # more than any card has; a register of all ones would say 4 PiB


def memory_size(chip: GspChip) -> int:
    """Return the bytes of VRAM; ChipError for a value that no card has."""
    nv = chip.nv
    if chip.boot.memory_mib:
        size = int(nv.NV_USABLE_FB_SIZE_IN_MB.read()) * MIB
    else:
        found = nv.NV_PFB_PRI_MMU_LOCAL_MEMORY_RANGE.read()
        size = found.LOWER_MAG << (found.LOWER_SCALE + 20)
        size = size // 16 * 15 if found.ECC_MODE else size
    if not 0 < size <= _MOST_VRAM:
        raise ChipError("the chip states an impossible size of its memory", found=size)
    return size


def _top(chip: GspChip) -> int:
    """Return where memory that the driver must not use begins, at the end of VRAM."""
    nv, vram, boot = chip.nv, chip.memory_size, chip.boot
    base = None
    if boot.display_fuse and not chip.nv[boot.display_fuse].read().DATA:
        found = nv.NV_PDISP_VGA_WORKSPACE_BASE.read()
        base = found.ADDR << 16 if found.STATUS_VALID else None
    top = vga_workspace(vram, base)
    if boot.way is BootWay.BOOTER:  # GA100: a part may be locked
        readable = nv.NV_PFB_PRI_MMU_LOCK_CFG_PRIV_LEVEL_MASK.read().READ_PROTECTION_LEVEL0
        low, high = nv.NV_PFB_PRI_MMU_LOCK_ADDR_LO.read(), nv.NV_PFB_PRI_MMU_LOCK_ADDR_HI.read()
        if readable and high.VAL >= low.VAL:
            top = min(top, low.VAL << 12)
    return top


def plan(start: Start) -> None:
    """Compute the carve-out. Nothing of the chip is changed."""
    chip, files = start.chip, start.files
    boot, by_fsp = chip.boot, chip.boot.way is BootWay.FSP
    chip.open_memory(memory_size(chip))
    heap = heap_size(files.abi, chip.memory_size, libos=boot.libos, fsp=by_fsp)
    if by_fsp:
        start.places = sized(heap, boot.non_wpr, boot.pmu_reserved)
        return
    start.places = carve_out(
        chip.memory_size,
        _top(chip),
        boot_size=len(files.boot_loader.data),
        image_size=len(files.gsp.image),
        heap=heap,
        frts_size=FRTS_SIZE if boot.way is BootWay.FWSEC else 0,
    )
    need = chip.memory_size - start.places["nonWprHeapOffset"]
    if boot.prescrubbed and need > boot.prescrubbed:
        raise NotSupported(
            "the firmware needs more memory at the end of VRAM than the board's firmware has "
            "cleared, and the program that clears more (scrubber) is not implemented",
            need=need,
            have=boot.prescrubbed,
        )


def place_image(start: Start) -> None:
    """Copy the firmware's image and its parts into memory, and describe them to booter or FMC."""
    files, memory = start.files, start.memory
    image = files.gsp.image
    parts = {"Radix3Elf": (memory.take_listed(len(image), image).address, len(image))}
    for name, data in ("Bootloader", files.boot_loader.data), ("Signature", files.gsp.signature):
        parts[name] = (memory.take(len(data), data).address, len(data))
    content = wpr_metadata(files.abi, parts, files.boot_loader, start.places)
    start.metadata = memory.take(PAGE, content)


def place_arguments(start: Start) -> None:
    """Prepare logs, queues and arguments, as the firmware finds them by its mailbox."""
    memory, abi = start.memory, start.files.abi
    for name in LOGS:
        pages = memory.take(LOG_SIZE, name=name)
        pages.put(log_header(pages.pages))
        start.logs[name] = pages
    start.queues = memory.take(REGION_SIZE, name="queues")
    content = manager_arguments(abi, start.queues.address)
    arguments = start.manager = memory.take(PAGE, content, name="manager")
    regions = {name: (pages.address, pages.size) for name, pages in start.logs.items()}
    regions["RMARGS"] = (arguments.address, PAGE)
    start.arguments = memory.take(PAGE, region_list(abi, regions), name="regions")


def place_flush_page(start: Start) -> Pages:
    """Allocate the page that the GPU reads to flush its writes."""
    return start.memory.take(PAGE, name="flush", bits=start.chip.flush_bits)
