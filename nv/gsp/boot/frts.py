"""Step "frts": FWSEC protects a region at the end of VRAM (WPR2) and copies data there (FRTS)."""

from __future__ import annotations

from ugpu.hcq.errors import DeviceBusy, FirmwareRejected
from ugpu.nv.gsp.boot.start import Start
from ugpu.nv.gsp.chip.chip import GspChip, is_locked
from ugpu.nv.gsp.chip.falcon import Program
from ugpu.nv.gsp.images.fwsec import FRTS, Fwsec, frts_arguments
from ugpu.nv.gsp.layout.memory import Pages


def protected_region(chip: GspChip) -> tuple[int, int]:
    """Return begin and end of WPR2 in VRAM; (0, 0) if there is none."""
    found = chip.nv.NV_PFB_PRI_MMU_WPR2_ADDR_HI.read()
    if is_locked(int(found)):  # under Confidential Computing; FSP then refuses by itself
        return 0, 0
    high = found.VAL << 12
    if not high:
        return 0, 0
    return chip.nv.NV_PFB_PRI_MMU_WPR2_ADDR_LO.read().VAL << 12, high


def check_unprotected(chip: GspChip) -> None:
    """Raise DeviceBusy if the GSP of an earlier start still owns its region."""
    low, high = protected_region(chip)
    if high:
        raise DeviceBusy(
            "the GSP still owns its memory (WPR2 is set): an earlier start failed, or its driver "
            "died",
            holder="GSP firmware",
            region=f"{low:#x}-{high:#x}",
            remedy="reset the slot, or power the card off and on",
        )


def program(fwsec: Fwsec, image: Pages, name: str) -> Program:
    """Return how FWSEC is loaded from memory with its image."""
    descriptor = fwsec.descriptor
    return Program(
        name=name,
        address=image.address,
        code=(0, descriptor.imem),
        tag=descriptor.virtual,
        data=(descriptor.imem, descriptor.dmem),
        parameters=descriptor.signature_at,
        engines=descriptor.engines,
        ucode=descriptor.ucode,
        start=descriptor.virtual,
    )


def run_frts(start: Start) -> None:
    """Run FWSEC's command FRTS; FirmwareRejected if it fails or protects another region."""
    assert start.fwsec is not None and start.carveout is not None
    chip, falcon, carveout = start.chip, start.gsp, start.carveout
    image = start.fwsec.with_command(FRTS, frts_arguments(carveout.frts), start.signature)
    pages = start.memory.take(len(image), image)
    falcon.reset_to_falcon()
    result = falcon.run(program(start.fwsec, pages, "FWSEC-FRTS"), (0, 0))
    falcon.check("FWSEC-FRTS", result)
    error = chip.nv.NV_PBUS_SW_SCRATCH_0E.read().FRTS_ERROR
    expected = (carveout.frts, carveout.frts + carveout.frts_size)
    found = protected_region(chip)
    if error or found != expected:
        raise FirmwareRejected(
            f"FWSEC-FRTS reports error {error:#x}" if error
            else "FWSEC-FRTS protected another region than requested",
            image="FWSEC", stage="FRTS", status=error,
            expected=f"{expected[0]:#x}-{expected[1]:#x}", found=f"{found[0]:#x}-{found[1]:#x}",
        )  # fmt: skip
    start.memory.close([pages])
