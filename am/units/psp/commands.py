"""Commands for the PSP's ring, and refusals of its bootloader.

Layouts: Linux 6.12 psp_gfx_if.h; of the firmware's reservations, which 6.12 lacks, the same file of
Linux 6.18.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from ugpu.am.chip import remedies as advice
from ugpu.am.regs import structs
from ugpu.am.units.memory import Carveout
from ugpu.hcq.bare.bus import ALL_ONES
from ugpu.hcq.errors import FirmwareRejected
from ugpu.hcq.registers.layout import Struct

COMMAND_SIZE = 0x1000  # the command, and our fence at the end
_PAGE = 4096  # alignment of an image (Linux 6.12 amdgpu_ucode.c, amdgpu_ucode_init_bo)
_ERROR = 0xFF
_UNKNOWN_COMMAND = 0x100  # PSP_ERR_UNKNOWN_COMMAND, ta_xgmi_if.h and others
RESERVATION = struct.Struct("<III")  # address, high half first, and size: uresp.fw_reserve_info
PRIVATE_SIZE = 1 << 20  # and its alignment: the bootloader takes the address >> 20


def refusal(status: int) -> int:
    """Return the error in the bootloader's status, 0 without one."""
    return 0 if status == ALL_ONES else status & _ERROR


def refused(name: str, error: int) -> FirmwareRejected:
    """Return the error for an image that the bootloader does not take."""
    return FirmwareRejected(
        f"the PSP bootloader refused the {name}",
        image=name,
        status=error,
        remedy=advice.REFUSED,
    )


@dataclass(frozen=True)
class Command:
    """GFX_CMD_ID_<kind>, or command `kind` itself. fill: sets its fields, with the MC address of
    `image`, which lies in whole pages in front of the command; FirmwareRejected if the image is too
    large. what: its name in errors. answer: offset and size of what `Psp.ask` returns of the
    response, which begins with the status. optional: firmware that lacks the command gives zeros.
    """

    what: str
    kind: str | int
    fill: Callable[[Struct, int], None]
    image: bytes = b""
    answer: tuple[int, int] = (0, 4)
    optional: bool = False

    def __post_init__(self) -> None:
        if len(self.image) > PRIVATE_SIZE:
            raise FirmwareRejected(
                "the image is larger than the PSP's buffer",
                size=len(self.image),
                limit=PRIVATE_SIZE,
            )

    def accepts(self, status: int) -> bool:
        """Return whether a status is not an error."""
        return status == 0 or (self.optional and status == _UNKNOWN_COMMAND)

    @property
    def size(self) -> int:
        """Bytes of image and command."""
        return -(-len(self.image) // _PAGE) * _PAGE + COMMAND_SIZE


def load_toc(image: bytes) -> Command:
    """Return the command that sends the table of contents; its response has the size of the TMR."""

    def fill(buffer: Struct, address: int) -> None:
        toc = buffer.cmd.cmd_load_toc
        toc.toc_phy_addr_lo, toc.toc_phy_addr_hi = address & 0xFFFF_FFFF, address >> 32
        toc.toc_size = len(image)

    place = structs("psp_gfx_if").psp_gfx_resp.offset_of("tmr_size")
    return Command("TOC", "LOAD_TOC", fill, image, (place, 4))


def query_reservations() -> tuple[Command, Command]:
    """Return the commands that ask for the parts of VRAM that the firmware keeps for itself: at the
    end of VRAM (FB_FW_RESERV_ADDR), and elsewhere (FB_FW_RESERV_EXT_ADDR)."""
    place = structs("psp_gfx_if").psp_gfx_resp.offset_of("uresp")
    first, second = (
        Command(what, kind, lambda _buffer, _image: None, b"", (place, RESERVATION.size), True)
        for what, kind in (("reservation", 0x50), ("extended reservation", 0x51))
    )
    return first, second


def autoload() -> Command:
    """Return the command that lets the RLC start the graphics core with what was loaded."""
    return Command("RLC autoload", "AUTOLOAD_RLC", lambda _buffer, _image: None)


def setup_tmr(carveout: Carveout, address: int, size: int) -> Command:
    """Return the command that gives VRAM [address, address+size) to the firmware for good."""
    mc, physical = carveout.mc(address), carveout.physical(address)

    def fill(buffer: Struct, _image: int) -> None:
        tmr = buffer.cmd.cmd_setup_tmr
        tmr.buf_phy_addr_lo, tmr.buf_phy_addr_hi = mc & 0xFFFF_FFFF, mc >> 32
        tmr.buf_size = size
        tmr.bitfield.virt_phy_addr = 1
        tmr.system_phy_addr_lo = physical & 0xFFFF_FFFF
        tmr.system_phy_addr_hi = physical >> 32

    return Command("TMR", "SETUP_TMR", fill)


def load_firmware(name: str, kind: int, image: bytes) -> Command:
    """Return the command that loads one image of psp_gfx_fw_type `kind`."""

    def fill(buffer: Struct, address: int) -> None:
        load = buffer.cmd.cmd_load_ip_fw
        load.fw_phy_addr_lo, load.fw_phy_addr_hi = address & 0xFFFF_FFFF, address >> 32
        load.fw_size = len(image)
        load.fw_type = kind

    return Command(name, "LOAD_IP_FW", fill, image)
