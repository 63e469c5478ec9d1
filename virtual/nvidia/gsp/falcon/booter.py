"""The booters on SEC2: load verifies the GSP's firmware and starts it, unload takes WPR2 down. The
scrubber (AD10x) clears more of the memory's top.

Source: open-gpu-kernel-modules 570.144 kernel_gsp_booter_tu102.c, kernel_gsp_tu102.c,
kernel_gsp_ad102.c; Linux 7.3.4 nouveau nvkm/subdev/gsp/{booter,tu102}.c. UNSURE: the codes in
mailbox 0; those of the real programs are not public.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from ugpu.virtual.nvidia.gsp.facts import BootFacts
from ugpu.virtual.nvidia.gsp.falcon import radix3, sleep, wpr
from ugpu.virtual.nvidia.gsp.falcon.core import PLANTED, Falcon, Refused, refusing, require
from ugpu.virtual.nvidia.gsp.falcon.wpr import PRESCRUBBED, SIZE, VERIFIED, WprMeta
from ugpu.virtual.nvidia.gsp.faults import CardFault
from ugpu.virtual.nvidia.gsp.firmware import images, module
from ugpu.virtual.nvidia.gsp.firmware.sign import SIZE as SIGNATURE
from ugpu.virtual.nvidia.gsp.firmware.sign import problem

if TYPE_CHECKING:
    from ugpu.virtual.nvidia.gsp.card import Card

UNLOAD = 0xFF_0000_00FF
SUSPENDED = 0x8000_0000


class BooterError(enum.IntEnum):
    """What a booter leaves in mailbox 0."""

    META = 0x0A
    LAYOUT = 0x0B
    IMAGE = 0x0C
    BOOTLOADER = 0x0D
    SIGNATURE = 0x0E
    GSP_STATE = 0x0F
    WPR_STATE = 0x10
    MEMORY = 0x11


_PLANTED = {
    CardFault.BOOTER_FAILS: BooterError.LAYOUT, CardFault.BOOTER_META: BooterError.META,
}  # fmt: skip


def load(board: Card, falcon: Falcon) -> None:
    """Verify, copy, protect, and start the GSP's RISC-V core."""
    with refusing(board, "booter", falcon.answer):
        fault = board.faults.take_any(tuple(_PLANTED))
        if fault is not None:
            raise Refused(_PLANTED[fault], PLANTED)
        raw = radix3.need(board, falcon.mailbox, SIZE, BooterError.META)
        if wpr.resumes(raw):
            _check_state(board, resuming=True)
            firmware = sleep.restore(board, falcon.mailbox)
            falcon.answer(0)
            board.resume_gsp(firmware)
            return
        meta = wpr.read("GspFwWprMeta", raw)
        _check_state(board)
        frts = (board.wpr.start, board.wpr.end) if board.boot.way == "fwsec" else None
        facts = (board.memory_size, board.boot.libos, frts, board.scrubbed)
        wpr.check(meta, *facts, BooterError.LAYOUT)
        version = place(board, meta)
        board.wpr.set(meta.gspFwWprStart, meta.gspFwWprEnd)
        falcon.answer(0)
        board.start_gsp(meta, version, board.gsp.mailbox)


def unload(board: Card, falcon: Falcon) -> None:
    """Take WPR2 down, once the GSP has stopped and FWSEC-SB has run."""
    bad = BooterError.GSP_STATE
    with refusing(board, "booter unload", falcon.answer):
        require(not board.faults.take(CardFault.UNLOADER_FAILS), bad, PLANTED)
        require(not board.gsp.active, bad, "the GSP runs")
        require(board.sb_done, bad, "FWSEC has not executed SB")
        try:
            if falcon.mailbox != UNLOAD:
                sleep.save(board, falcon.mailbox)
        except Refused as refusal:
            text = f"mailboxes must be 0xff, 0xff, are {falcon.mailbox:#x}: {refusal}"
            raise Refused(bad, text) from refusal
        if not board.faults.take(CardFault.WPR2_STAYS):
            board.wpr.clear()
        board.sb_done = board.handoff = False
        falcon.answer(0)


def scrub(board: Card, falcon: Falcon) -> None:
    """Clear the whole memory."""
    board.scrubbed, board.scrub_stage = 0, 3
    falcon.answer(0)


def prescrubbed(facts: BootFacts, memory: int) -> int:
    """Return the address from which a chip's memory is clean after power-on."""
    return max(0, memory - PRESCRUBBED) if facts.way == "fwsec" else 0


def _check_state(board: Card, *, resuming: bool = False) -> None:
    gsp, bad_gsp, bad_wpr = board.gsp, BooterError.GSP_STATE, BooterError.WPR_STATE
    require(not gsp.active, bad_gsp, "the GSP runs already")
    # To resume, booter selects the core, and the firmware has its arguments (kernel_gsp_tu102.c,
    # kgspBootstrap).
    ready = (gsp.selects_riscv or resuming) and not gsp.in_reset
    require(ready, bad_gsp, "the GSP is not reset into its RISC-V core")
    told = gsp.mailbox or resuming
    require(told, bad_gsp, "the GSP's mailboxes hold no libos arguments")
    if board.boot.way == "booter" or resuming:
        require(not board.wpr.up, bad_wpr, "WPR2 is already set")
    else:
        require(board.wpr.up, bad_wpr, "FWSEC has not made the FRTS region")


def place(board: Card, meta: WprMeta) -> str:
    """Verify the GSP's image and boot loader and copy them; return the firmware's version."""

    def read(place: str, size: str, error: BooterError) -> bytes:
        return radix3.need(board, meta[place], meta[size], error)

    root, size = meta.sysmemAddrOfRadix3Elf, meta.sizeOfRadix3Elf
    image = radix3.read(board, root, size, BooterError.IMAGE)
    loader = read("sysmemAddrOfBootloader", "sizeOfBootloader", BooterError.BOOTLOADER)
    field = read("sysmemAddrOfSignature", "sizeOfSignature", BooterError.SIGNATURE)
    content = board.boot.signature.encode() + image
    why = problem(field, images.IMAGE_TERMS, content)
    require(not why, BooterError.SIGNATURE, f"the GSP's image: {why}")
    known = image.startswith(images.GSP_MAGIC)
    require(known, BooterError.IMAGE, "the image is not one that the model can run")
    version = image[8:40].rstrip(b"\0").decode("ascii", "replace")
    loader_version, expected = _verified(loader)
    parts = ("bootloaderCodeOffset", "bootloaderDataOffset", "bootloaderManifestOffset")
    offsets = tuple(meta[name] for name in parts)
    fits, same = board.boot.pio or offsets == expected, loader_version == version
    require(fits, BooterError.BOOTLOADER, f"its parts are at {offsets}, not {expected}")
    require(same, BooterError.BOOTLOADER, f"the boot loader is not of {version}")
    meta.verified = VERIFIED
    for at, content in (
        (meta.gspFwOffset, image), (meta.bootBinOffset, loader), (meta.gspFwWprStart, bytes(meta))
    ):  # fmt: skip
        board.falcon_memory(at, len(content))[:] = content
    return version


def _verified(loader: bytes) -> tuple[str, tuple[int, int, int]]:
    """Return a boot loader's version, and where its parts are."""
    parts = module.boot_loader_parts(loader)
    if parts is not None:
        return module.VERSION, parts
    why = problem(loader[-SIGNATURE:], images.IMAGE_TERMS, loader[:-SIGNATURE])
    require(not why, BooterError.BOOTLOADER, f"the GSP's boot loader: {why}")
    version = loader[8:40].rstrip(b"\0").decode("ascii", "replace")
    return version, (images.MONITOR_CODE[0], images.MONITOR_DATA[0], images.MANIFEST[0])
