"""Commands of the secure OS's ring: trusted memory, firmware loading, autoload.

Facts: Linux 6.12 psp_gfx_if.h (ids, layouts), amdgpu_psp.c (order on MP0 13.0.0: SMU firmware,
then the trusted memory region, then the rest, RLC_G last). Status numbers other than those in
psp_gfx_if.h are UNSURE: AMD's are not public.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from ugpu.virtual.amd.firmware.images import verify
from ugpu.virtual.amd.firmware.interface import FirmwareInterface
from ugpu.virtual.amd.firmware.reservation import QUERY, QUERY_EXTENDED, Reservation

if TYPE_CHECKING:
    from ugpu.virtual.amd.board import Board

OK = 0
BAD_IMAGE, WRONG_ORDER, BAD_ADDRESS, NO_TOC = 0x0000_000F, 0x0000_0012, 0x0000_0015, 0x0000_0017
UNKNOWN_COMMAND = 0x0000_0100  # PSP_ERR_UNKNOWN_COMMAND
NOT_SUPPORTED = 0xFFFF_000A  # TEE_ERROR_NOT_SUPPORTED
NO_SESSION = 0xFFFF_0006  # TEE_ERROR_BAD_PARAMETERS
_UNLOAD_TA, _LOAD_ASD, _SETUP_TMR, _LOAD_IP_FW, _DESTROY_TMR = 2, 4, 5, 6, 7
_ASD_SESSION = 0x0A5D  # UNSURE: a board's session ids; the driver passes the id back
_LOAD_TOC, _AUTOLOAD, _BOOT_CONFIG = 0x20, 0x21, 0x22
_UNSUPPORTED = frozenset({1, 3, 8, 9, 0xA, 0xB, 0xF, 0x27})
_PARAMETERS = 28
_RESPONSE_SIZE = 96
_ALIGNMENT = 1 << 20


class Commands:
    """The ring's commands and the state that they share.

    read: reads memory at an MC address; None after a fault.
    """

    def __init__(
        self, chip: Board, interface: FirmwareInterface, read: Callable[[int, int], bytes | None]
    ) -> None:
        self._chip = chip
        self._interface = interface
        self._read = read
        self.reservation = Reservation(chip)
        self.loaded: set[str] = set()
        self._toc = False
        self._autoload = False
        self._asd = False  # ASD, the driver that runs all trusted applications, is loaded
        self._next = 0  # address in the TMR for the next image
        self._again: frozenset[str] = frozenset()  # kinds to load again after a graphics reset

    def forget_graphics(self) -> None:
        """Handle a mode2 reset: the driver loads IMU again; autoload restarts the other images,
        which stay loaded (Linux 6.12 smu_v13_0_10.c, smu_v13_0_10_mode2_restore_ip)."""
        self.loaded -= self._interface.again
        self._again = self._interface.again
        self._autoload = False

    def reset(self) -> None:
        """Discard all firmware and state."""
        self.loaded.clear()
        self._toc = False
        self._autoload = False
        self._asd = False
        self._next = 0
        self._again = frozenset()

    def execute(self, content: bytes) -> bytes:
        """Run the command in a 1024-byte buffer and return the 96-byte response."""
        command = struct.unpack_from("<I", content, 8)[0]
        self.reservation.verify()
        words = struct.unpack_from("<6I", content, _PARAMETERS)
        address, size = words[0] | words[1] << 32, words[2]
        status, session, placed, tmr_size = OK, 0, 0, 0
        if command in self._chip.faults.psp_commands:
            status = self._chip.faults.psp_commands[command]
        elif command == _LOAD_TOC:
            status, tmr_size = self._load_toc(address, size)
        elif command == _LOAD_ASD:
            status = self._check("ASD", address, size)
            self._asd = status == OK
            session = _ASD_SESSION if self._asd else 0
        elif command == _UNLOAD_TA:
            status = self._unload(words[0])
        elif command == _SETUP_TMR:
            status = self._setup_tmr(address, size, words[3], words[4] | words[5] << 32)
        elif command == _LOAD_IP_FW:
            status, placed = self._load_firmware(address, size, words[3])
        elif command == _DESTROY_TMR:
            if not self._interface.own_region:
                self._chip.tmr = None
            self.loaded &= {"SMU"}
        elif command == _AUTOLOAD:
            status = self._start_autoload()
        elif command == _BOOT_CONFIG:
            pass
        elif command in (QUERY, QUERY_EXTENDED) and self.reports_reservation:
            return self.reservation.answer(command).ljust(_RESPONSE_SIZE, b"\x00")
        else:
            status = NOT_SUPPORTED if command in _UNSUPPORTED else UNKNOWN_COMMAND
        response = struct.pack("<5I", status, session, placed & 0xFFFF_FFFF, placed >> 32, tmr_size)
        return response.ljust(_RESPONSE_SIZE, b"\x00")

    @property
    def version(self) -> int:
        """The version of the secure OS."""
        set_by = (self._chip.options.secure_os_version, self._interface.secure_os_version)
        return next(filter(None, set_by), self._chip.facts.reservations_since)

    @property
    def reports_reservation(self) -> bool:
        """Return whether this secure OS has the queries for its reservations."""
        since = self._chip.facts.reservations_since
        return bool(since) and self.version >= since

    def _unload(self, session: int) -> int:
        """End a trusted application's session; only ASD can be loaded."""
        if not self._asd or session != _ASD_SESSION:
            return NO_SESSION
        self._asd = False
        return OK

    def _load_toc(self, address: int, size: int) -> tuple[int, int]:
        """Check the table of contents; return the status and the size required for the TMR."""
        status = self._check("TOC", address, size)
        if status:
            return status, 0
        self._toc = True
        return OK, self._chip.options.tmr_size

    def own_region(self) -> None:
        """Set up the trusted memory region as IFWI does, where VRAM has room for it.

        UNSURE: where in the reserved part it lies; a board's answer to FB_FW_RESERV_ADDR would
        settle it. Here at its beginning, so that the discovery table stays readable.
        """
        chip = self._chip
        start = chip.vram.size - chip.facts.generation.reserved_vram
        if start > 0:
            chip.tmr = (start, start + chip.options.tmr_size)
            self._next = chip.mm.frame_buffer()[0] + start

    def _setup_tmr(self, address: int, size: int, flags: int, physical: int) -> int:
        chip = self._chip
        if not self._toc:
            return NO_TOC
        if self._interface.own_region:
            # Linux skips the command (amdgpu_psp.c, psp_skip_tmr), and so does tinygrad's AM
            # driver. UNSURE: that firmware ignores it.
            chip.note(f"PSP: SETUP_TMR at {address:#x}, although IFWI has set up the region")
            return OK
        if "SMU" not in self.loaded:
            return WRONG_ORDER
        start, end = chip.mm.frame_buffer()
        offset = address - start
        if address % _ALIGNMENT or address < start or address + size > end:
            return BAD_ADDRESS
        if size < chip.options.tmr_size or (flags & 2 and physical != offset):
            return BAD_ADDRESS
        chip.tmr = (offset, offset + size)
        self._next = address
        return OK

    def _load_firmware(self, address: int, size: int, number: int) -> tuple[int, int]:
        chip = self._chip
        kind = self._interface.types.get(number)
        if kind is None:
            return NOT_SUPPORTED, 0
        if kind == "SMU":
            if chip.tmr is not None and not self._interface.own_region:
                return WRONG_ORDER, 0
        elif chip.tmr is None or ("RLC_G" in self.loaded and kind not in self._again):
            return WRONG_ORDER, 0
        status = self._check(kind, address, size)
        if status:
            return status, 0
        self.loaded.add(kind)
        if kind == "SMU":
            chip.smu.start()
            return OK, 0
        placed = self._next
        self._next += -(-size // 4096) * 4096
        return OK, placed

    def _check(self, kind: str, address: int, size: int) -> int:
        """Check an image in memory: its address, complete size, kind and signature."""
        if address % 4096:
            return BAD_ADDRESS
        if kind in self._chip.faults.psp_reject:
            return self._chip.faults.psp_status
        image = self._read(address, size) if 0 < size <= 1 << 24 else None
        if image is None:
            return BAD_ADDRESS
        return OK if verify(kind, image) else BAD_IMAGE

    def _start_autoload(self) -> int:
        """Start RLC. If firmware is missing, autoload never completes, as on a board."""
        chip = self._chip
        if self._autoload or chip.tmr is None or not self._toc:
            return WRONG_ORDER
        if self.loaded >= self._interface.needed and not chip.faults.autoload_never:
            self._autoload = True
            # UNSURE: whether GC accepts register writes once the command is answered. tinygrad's AM
            # driver writes GFXHUB right after it, with a wait that never blocks, and comes up on
            # boards.
            chip.autoload()
        return OK
