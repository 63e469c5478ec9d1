"""Commands for the PSP's ring, and refusals of its bootloader.

Layouts: Linux 6.12 psp_gfx_if.h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ugpu.am.chip import remedies as advice
from ugpu.am.units.memory import Carveout
from ugpu.hcq.bare.bus import ALL_ONES
from ugpu.hcq.errors import FirmwareRejected
from ugpu.hcq.registers.layout import Struct

COMMAND_SIZE = 0x1000  # the command, and our fence at the end
_PAGE = 4096  # alignment of an image (Linux 6.12 amdgpu_ucode.c, amdgpu_ucode_init_bo)
_ERROR = 0xFF
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
    """GFX_CMD_ID_<kind>. fill: sets its fields, with the MC address of `image`, which lies in whole
    pages in front of the command; FirmwareRejected if the image is too large. what: its name in
    errors."""

    what: str
    kind: str
    fill: Callable[[Struct, int], None]
    image: bytes = b""

    def __post_init__(self) -> None:
        if len(self.image) > PRIVATE_SIZE:
            raise FirmwareRejected(
                "the image is larger than the PSP's buffer",
                size=len(self.image),
                limit=PRIVATE_SIZE,
            )

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

    return Command("TOC", "LOAD_TOC", fill, image)


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
