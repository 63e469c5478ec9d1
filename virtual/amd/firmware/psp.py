"""The security processor (MP0): its boot loader, and the ring that its secure OS serves.

Facts: Linux 6.12 psp_v13_0.c (mailboxes, order), psp_gfx_if.h (ring, commands), amdgpu_psp.c.
"""

from __future__ import annotations

import enum
import struct
from typing import TYPE_CHECKING

from ugpu.virtual.amd.block import Block, Reset
from ugpu.virtual.amd.firmware.images import HEADER, image_size, verify
from ugpu.virtual.amd.firmware.interface import FirmwareInterface
from ugpu.virtual.amd.firmware.pspcommands import Commands

if TYPE_CHECKING:
    from ugpu.virtual.amd.board import Board

CLIENT = 6  # MP0 in MMHUB (Linux 6.12 mmhub_v3_0.c)
READY = 0x8000_0000
_MEGABYTE = 1 << 20
_FRAME = 64
_FRAME_DWORDS = _FRAME // 4
_COMMAND_BUFFER = 1024
_RESPONSE = 864
# Error codes that the loader leaves in bits 7:0; UNSURE: AMD's numbers are not public.
_WRONG_COMMAND, _WRONG_ORDER, _BAD_ADDRESS, _BAD_IMAGE = 0x11, 0x22, 0x33, 0x44
_INIT_RING, _DESTROY_RINGS, _MODE1 = 2, 3, 7
_RING_BAD_SIZE, _RING_BAD_BASE, _RING_UNKNOWN = 0x0A, 0x0B, 0x100


class State(enum.Enum):
    """Boot state of the processor."""

    OFF = "IFWI runs"
    LOADER = "boot loader waits"
    LOADER_BUSY = "boot loader works"
    LOADER_FAILED = "boot loader refused a component"
    SECURE_OS = "secure OS runs"


class Psp(Block):
    """MP0. Tests may read `state` and `loaded` (kinds of firmware). prefix: of its mailboxes.
    shown: mailboxes that show the version of the secure OS once it runs."""

    prefix = "MP0_SMN_C2PMSG_"
    shown: tuple[int, ...] = (58, 81)

    def __init__(self, chip: Board, interface: FirmwareInterface) -> None:
        super().__init__(chip, "mp")
        self._interface = interface
        self.state = State.OFF
        self._step = 0  # next step of the loader
        self._ring: tuple[int, int] | None = None  # MC address, size in bytes
        self._rptr = 0
        self._busy = False
        self.commands = Commands(chip, interface, self.read)
        self.on_write(self.mailbox(35), self._loader_command)
        self.on_write(self.mailbox(64), self._control)
        self.on_write(self.mailbox(67), self._write_pointer)
        for number in (33, *self.shown):
            chip.space.read_only("mp", self.mailbox(number))

    def mailbox(self, number: int) -> str:
        """Return the name of a mailbox register."""
        return f"{self.prefix}{number}"

    @property
    def loaded(self) -> set[str]:
        """The kinds of firmware that LOAD_IP_FW has accepted."""
        return self.commands.loaded

    def forget_graphics(self) -> None:
        """Handle a graphics core reset: firmware loading starts again from the first image."""
        self.commands.forget_graphics()

    def reset(self, scope: Reset) -> None:
        """Discard all state; IFWI starts again."""
        self.state = State.OFF
        self._step = 0
        self._ring = None
        self._rptr = 0
        self._busy = False
        self.commands.reset()
        self.commands.reservation.forget()

    def stop(self) -> None:
        """Look at the firmware's reservation before VRAM loses its content."""
        self.commands.reservation.verify()
        super().stop()

    def close(self) -> None:
        """See `stop`."""
        self.commands.reservation.verify()
        super().close()

    def ifwi_done(self) -> None:
        """Show that the boot loader is ready."""
        self.state = State.LOADER
        if self._interface.own_region:
            self.commands.own_region()
        self.set(self.mailbox(33), READY)
        self.set(self.mailbox(35), READY)

    def read(self, address: int, size: int) -> bytes | None:
        """Read memory at an MC address; None after a fault."""
        data, fault = self.chip.mm.read(0, address, size, CLIENT)
        return None if fault is not None else data

    def note_leftovers(self, address: int, size: int) -> None:
        """Note a buffer that is not zero after its image; the kernel's driver always clears it."""
        left = self.chip.mm.mapped(0, address + size, _MEGABYTE - size)
        rest = self.read(address + size, left)
        if rest is not None and rest != bytes(len(rest)):
            self.chip.note(f"PSP: {address:#x}: the buffer is not zero behind the image")

    # ---- boot loader --------------------------------------------------------------------------

    def _loader_command(self, command: int) -> None:
        if self.state is not State.LOADER:
            self.chip.fault(f"PSP: loader command {command:#x} while {self.state.value}")
            return
        self.state = State.LOADER_BUSY
        address = self.get(self.mailbox(36)) << 20
        self.chip.scheduler.after(
            self.chip.options.delays.bootloader, lambda: self._load_component(command, address)
        )

    def _load_component(self, command: int, address: int) -> None:
        code = self._check_component(command, address)
        if code:
            self.state = State.LOADER_FAILED
            # Bit 31 set and bits 7:0 not zero: a driver that tests only bit 31 assumes success.
            self.set(self.mailbox(35), READY | code)
            return
        if self.chip.faults.bootloader_never:
            return
        if command != self._interface.loader[-1].command:
            self.state = State.LOADER
            self.set(self.mailbox(35), READY)
        elif not self.chip.faults.secure_os_never:
            self.chip.scheduler.after(self.chip.options.delays.secure_os, self._secure_os_up)

    def _check_component(self, command: int, address: int) -> int:
        """Check the order and the image; return 0 or the error code."""
        steps = self._interface.loader
        step = next((at for at, entry in enumerate(steps) if entry.command == command), None)
        if step is None:
            return _WRONG_COMMAND
        if step < self._step or not all(entry.optional for entry in steps[self._step : step]):
            return _WRONG_ORDER
        # The image is in VRAM or, with Linux, in host memory through the GART: MMHUB translates for
        # the loader. Linux allocates 1 MiB; tinygrad behind a USB bridge allocates 512 KiB
        # (runtime/support/am/ip.py), which boards accept: the loader does not read past the image.
        header = self.read(address, HEADER)
        if header is None:
            return _BAD_ADDRESS
        size = image_size(header)
        if size is None or size > _MEGABYTE:
            return _BAD_IMAGE
        image = self.read(address, size)
        if image is None:
            return _BAD_ADDRESS
        for kind in steps[step].kinds:
            if verify(kind, image):
                if kind in self.chip.faults.psp_reject:
                    return self.chip.faults.psp_status & 0xFF
                self.note_leftovers(address, size)
                self._step = step + 1
                return 0
        return _BAD_IMAGE

    def _secure_os_up(self) -> None:
        self.state = State.SECURE_OS
        self.set(self.mailbox(35), READY)
        self.set(self.mailbox(64), READY)
        for number in self.shown:
            self.set(self.mailbox(number), self.commands.version)
        if self.commands.reports_reservation:
            self.commands.reservation.mark()

    # ---- ring ---------------------------------------------------------------------------------

    def _control(self, value: int) -> None:
        """Handle a control command (bits 23:16); answer with bit 31 and a status."""
        if self.state is not State.SECURE_OS:
            self.chip.fault(f"PSP: control command {value:#x} while {self.state.value}")
            return
        if value & READY:
            self.chip.violation(f"PSP: control command {value:#x} has the response bit set")
        base = self.get(self.mailbox(69)) | self.get(self.mailbox(70)) << 32
        size = self.get(self.mailbox(71))
        self.chip.scheduler.after(
            self.chip.options.delays.psp_control,
            lambda: self._controlled(value >> 16 & 0xFF, base, size),
        )

    def _controlled(self, command: int, base: int, size: int) -> None:
        status = 0
        if self.chip.faults.ring_never:
            return
        if command == _MODE1 and self.chip.options.psp_mode1:
            self.chip.mode1_reset()
            return
        if command == _DESTROY_RINGS:
            self._ring = None
        elif command == _INIT_RING:
            status = self.chip.faults.psp_ring_status or self._create_ring(base, size)
        else:
            status = _RING_UNKNOWN
        self.set(self.mailbox(64), READY | command << 16 | status)

    def _create_ring(self, base: int, size: int) -> int:
        if size < 0x1000 or size & (size - 1):
            return _RING_BAD_SIZE
        if base % 4096 or self.read(base, size) is None:
            return _RING_BAD_BASE
        self._ring = (base, size)
        self._rptr = 0
        self.set(self.mailbox(67), 0)
        return 0

    def _write_pointer(self, value: int) -> None:
        """Handle a new write pointer, in dwords."""
        if self._ring is None:
            self.chip.fault("PSP: ring pointer moved without a ring")
            return
        if value % _FRAME_DWORDS or value * 4 >= self._ring[1]:
            self.chip.fault(f"PSP: ring pointer {value:#x} is outside the ring or not a frame")
            return
        if self.chip.hdp.waits:
            # Linux flushes the HDP here; tinygrad's AM driver does not, and boards accept its
            # frames: pending writes drain without a flush before the secure OS reads the ring.
            self.chip.note("PSP: ring pointer moved while writes wait in the HDP")
            self.chip.hdp.drain()
        if not self._busy:
            self._serve()

    def _serve(self) -> None:
        """Schedule the next frame, if there is one."""
        self._busy = self._ring is not None and self._rptr != self.get(self.mailbox(67))
        if self._busy:
            self.chip.scheduler.after(self.chip.options.delays.psp_command, self._frame)

    def _frame(self) -> None:
        if self._ring is None:
            self._busy = False
            return
        base, size = self._ring
        raw = self.read(base + 4 * self._rptr, _FRAME)
        self._rptr = (self._rptr + _FRAME_DWORDS) % (size // 4)
        if raw is not None:
            self._execute(raw)
        self._serve()

    def _execute(self, raw: bytes) -> None:
        buffer, buffer_size, fence, value = struct.unpack_from("<QIQI", raw)
        if raw[24:].strip(b"\x00"):
            self.chip.violation("PSP: reserved bytes of a ring frame are not zero")
        # The kernel leaves the size zero (Linux 6.12 amdgpu_psp.c, psp_ring_cmd_submit).
        if buffer % 4096 or buffer_size not in (0, _COMMAND_BUFFER) or fence % 4:
            self.chip.fault(
                f"PSP: frame with buffer {buffer:#x}, {buffer_size} bytes, fence {fence:#x}"
            )
            return
        content = self.read(buffer, _COMMAND_BUFFER)
        if content is None:
            return
        response = self.commands.execute(content)
        if self.chip.faults.psp_silent:
            return
        self.chip.mm.write(0, buffer + _RESPONSE, response, CLIENT)
        self.chip.mm.write(0, fence, struct.pack("<I", value), CLIENT)
