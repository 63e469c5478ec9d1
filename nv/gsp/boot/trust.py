"""Steps "chain-of-trust" and "lockdown": FSP checks and starts the GSP's first program (FMC), which
places the firmware in VRAM and starts it.

Sources: open-gpu-kernel-modules 570.144 kern_fsp_gh100.c, kernel_gsp_gh100.c, gspifpub.h; Linux 7.3
nouveau subdev/gsp/gh100.c, subdev/fsp/gh100.c, gb202.c, nova-core gsp/hal/gh100.rs.
"""

from __future__ import annotations

from ugpu.hcq.bare.stages import or_silent
from ugpu.hcq.errors import FirmwareError, FirmwareRejected
from ugpu.nv.gsp.boot.start import Start
from ugpu.nv.gsp.chip.fsp import Fsp
from ugpu.nv.gsp.layout.framebuffer import FRTS_SIZE
from ugpu.nv.gsp.layout.memory import PAGE

_CHAIN_OF_TRUST = 0x14
_COHERENT = 1  # GSP_DMA_TARGET_COHERENT_SYSTEM
_META_SIZE = 0x100
_LOCKED, _LOCKED_MASK = 0xBADF_4100, 0xFFFF_FF00  # while FSP has the registers
_LIMIT_S = 30.0  # TIMEOUT: nova-core; nouveau 4 s


def request_start(start: Start) -> None:
    """Send FSP the chain of trust; FirmwareError with FSP's status if it refuses."""
    files, abi, boot = start.files, start.files.abi, start.boot
    fmc = files.fmc
    assert fmc is not None
    metadata = start.saved or start.metadata
    image = start.memory.take(len(fmc.image), fmc.image)
    block = abi.structs.GSP_FMC_BOOT_PARAMS.new()
    block.bootGspRmParams.target = _COHERENT
    block.bootGspRmParams.gspRmDescSize = _META_SIZE
    block.bootGspRmParams.gspRmDescOffset = metadata.address
    block.bootGspRmParams.bIsGspRmBoot = 1
    block.gspRmParams.target = _COHERENT
    block.gspRmParams.bootArgsOffset = start.arguments.address
    start.fmc_arguments = start.memory.take(PAGE, bytes(block.raw))
    layout = abi.structs.NVDM_PAYLOAD_COT
    resumes = start.saved is not None  # what was saved has the FRTS region
    message = layout.new(
        version=boot.trust_version,
        size=layout.size,
        gspFmcSysmemOffset=image.address,
        frtsVidmemOffset=0 if resumes else boot.frts_from_end,
        frtsVidmemSize=0 if resumes else FRTS_SIZE,
        gspBootArgsSysmemOffset=start.fmc_arguments.address,
    )
    for name, content in (
        ("hash384", fmc.digest), ("publicKey", fmc.key), ("signature", fmc.signature)
    ):  # fmt: skip
        place = layout.offset_of(name)
        message.raw[place : place + len(content)] = content
    start.running = True  # from here on the GSP may access memory
    try:
        Fsp(start.chip).ask(_CHAIN_OF_TRUST, bytes(message.raw))
    except FirmwareError as error:
        if "status" in error.facts:  # refused: nothing was started
            start.running = False
        raise


def await_release(start: Start) -> None:
    """Wait until FSP and FMC have given the GSP's registers back; FirmwareRejected with FMC's
    error."""
    regs, clock = start.gsp.regs, start.chip.clock
    own = start.fmc_arguments.address

    def reachable() -> bool:
        value = int(regs.HWCFG2.read())
        return value != 0 and value & _LOCKED_MASK != _LOCKED

    def released() -> bool:
        low, high = int(regs.MAILBOX0.read()), int(regs.MAILBOX1.read())
        if low and (high << 32 | low) != own:
            raise FirmwareRejected(
                f"the GSP's first program (FMC) ended with error {low & 0xFF:#x}",
                image="fmc", stage="lockdown", status=low,
            )  # fmt: skip
        return not regs.HWCFG2.read().RISCV_BR_PRIV_LOCKDOWN

    with or_silent("the GSP's registers stay locked after the chain of trust", start.state):
        clock.wait_until(reachable, unit="GSP", waiting_for="its registers", limit_s=_LIMIT_S)
        clock.wait_until(released, unit="GSP", waiting_for="end of lockdown", limit_s=_LIMIT_S)
