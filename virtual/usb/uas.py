"""The stock firmware with tinygrad's patch: commands by USB Attached SCSI, with streams.

Facts: tinygrad runtime/support/usb.py at f1041dc0ac (endpoints, commands, SRAM by WRITE(16)) and
extra/usbgpu/patch.py (strings, ids); asm2464pd-firmware handmade/src/usb.h (pipe usage of each
endpoint, streams), src/include/registers.h (CE10, CE40, CE6E) and src/drivers/usb_descriptors.c
(interface class); USB Attached SCSI (T10/2095-D, information units); SPC-4 and SBC-3. The firmware
itself powers the slot and trains its link.

A WRITE(16) takes as many 16 KiB slots as it needs, the next free ones in turn, whatever its block
address is: tinygrad sends all of a long buffer to block 0, and its card finds the parts in
sequence. Writing a slot's number to CE6E frees that slot; zeros in CE40 to CE43 free all.
UNSURE: what a write does that finds too few; here it is not accepted, and times out.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass, field

from ugpu.usbgpu.link.usb import Kind, Recipient
from ugpu.virtual.usb.custom import Setup
from ugpu.virtual.usb.hardware import Hardware
from ugpu.virtual.usb.memory import SECTOR, SLOT_SIZE, SLOTS, SRAM

DATA_IN, DATA_OUT, STATUS, COMMAND = 0x81, 0x02, 0x83, 0x04
_COMMAND_UNIT, _SENSE_UNIT, _RESPONSE_UNIT = 0x01, 0x03, 0x04
_UNIT_BYTES = 32
_READ, _WRITE, _WRITE_16 = 0xE4, 0xE5, 0x8A
_READY, _INQUIRY, _REPORT_UNITS = 0x00, 0x12, 0xA0
_SPACE, _SPACE_MASK = 0x50_0000, 0x1_FFFF
_LONGEST_WRITE = 64 << 10
_GOOD, _CHECK_CONDITION = 0, 2
_INCORRECT_UNIT, _OVERLAPPED_TAG = 0x09, 0x0A
_CLEAR_FEATURE = 0x01
# Sense key, code and qualifier (SPC-4, tables 48 and D.2).
_NO_MEDIUM, _UNKNOWN, _BAD_FIELD = (2, 0x3A, 0), (5, 0x20, 0), (5, 0x24, 0)
# tinygrad's first writes. UNSURE: whether WRITE(16) works without them and without a disk.
_SETUP = (
    (0x54B, b"\x20"), (0x54E, b"\x04"), (0x5A8, b"\x02"), (0x5F8, b"\x04"),
    (0x7EC, b"\x01\0\0\0"), (0xC422, b"\x02"), (0x0000, b"\x33"),
)  # fmt: skip
_ARM, _FREE, _TAKEN = 0x171, (0xCE6E, 0xCE6F), range(0xCE40, 0xCE44)
_ENTRIES = 0x800  # bytes of the submission queue that the firmware may write commands into
# SPC-4, 6.6: a disk, version 6, of 36 bytes; vendor, product and revision (patch.py, config1).
_IDENTITY = bytes((0, 0, 6, 2, 31, 0, 0, 0)) + b"tiny    TinyEnclosure   0100"
_UNITS = bytes((0, 0, 0, 8, *bytes(12)))  # SPC-4, 6.33: unit 0


@dataclass
class _Task:
    """A command that has not ended. wanted: bytes that it still expects from the host."""

    tag: int
    wanted: int = 0
    place: int | None = None  # None: no slots are free
    reply: bytes = b""
    status: bytes = field(default=b"")


class UasFirmware:
    """Runs commands in order; each uses its tag's stream for data and status."""

    identity = (0xADD1, 0x0001, 0x0100, "tiny", "USB 3.2 PCIe TinyEnclosure")
    interface_classes = ((8, 6, 0x50), (8, 6, 0x62))
    streams = 31
    powers_slot = True
    window = True  # see Memory
    alternates = ((DATA_IN, DATA_OUT), (DATA_IN, DATA_OUT, STATUS, COMMAND))
    alternates_high_speed = ((DATA_IN, DATA_OUT),)

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self.hung = False
        self._halted: set[int] = set()
        self._tasks: dict[int, _Task] = {}
        self._order: list[int] = []
        self._slots = [False] * SLOTS  # taken
        self._armed = 3  # how many bytes from 0x171 on allow the next write to begin
        self.write_sense: tuple[int, int, int] | None = None  # with which a WRITE(16) ends
        for at in range(3):
            hardware.memory.hook(_ARM + at, write=self._arm)
        for register in _FREE:
            hardware.memory.hook(register, write=self._free)
        for number, register in enumerate(_TAKEN):
            hardware.memory.hook(register, write=functools.partial(self._take_slots, number))

    # ---- SRAM ---------------------------------------------------------------------------------

    def _arm(self, value: int) -> None:
        self._armed = min(3, self._armed + (value == 0xFF))

    def _free(self, value: int) -> None:
        if value < SLOTS:
            self._slots[value] = False

    def _take_slots(self, number: int, value: int) -> None:
        if value:
            self._hardware.object_to(f"slots {value:#04x} of {number}: only zero is known")
        self._slots[8 * number : 8 * number + 8] = [False] * 8

    def _allocate(self, size: int) -> int | None:
        """Take slots for `size` bytes; return their start."""
        count = -(-size // SLOT_SIZE)
        for first in range(SLOTS - count + 1):
            if not any(self._slots[first : first + count]):
                self._slots[first : first + count] = [True] * count
                return SRAM.offset + first * SLOT_SIZE
        self._hardware.object_to(f"WRITE(16) of {size} bytes: too few slots are free")
        return None

    def _prepared(self) -> bool:
        memory = self._hardware.memory
        return all(memory.read(at, len(data)) == data for at, data in _SETUP)

    # ---- control ------------------------------------------------------------------------------

    def control(self, setup: Setup, _data: bytes) -> bytes | None:
        """Serve a request. The firmware has no vendor requests and answers them with a STALL."""
        if setup.kind is not Kind.STANDARD:
            raise Stalled
        if setup.request == _CLEAR_FEATURE and setup.recipient is Recipient.ENDPOINT:
            self._halted.discard(setup.index & 0xFF)
        elif setup.request in (0x09, 0x0B):
            self._halted.clear()
            self._tasks.clear()
            self._order.clear()
        return b"" if setup.length == 0 else None

    # ---- commands -----------------------------------------------------------------------------

    def _start(self, unit: bytes) -> None:
        tag = int.from_bytes(unit[2:4], "big")
        if unit[0] != _COMMAND_UNIT or len(unit) != _UNIT_BYTES or not 1 <= tag <= self.streams:
            self._hardware.object_to(f"command unit {unit.hex()}: malformed")
            self._halted.add(COMMAND)
            raise Stalled
        if tag in self._tasks:
            self._hardware.object_to(f"tag {tag} is used by a command that has not ended")
            task = self._tasks[tag]
            task.status = _response(tag, _OVERLAPPED_TAG)
            task.wanted = 0
            return
        task = _Task(tag)
        self._tasks[tag] = task
        self._order.append(tag)
        if any(unit[8:16]):
            task.status = _response(tag, _INCORRECT_UNIT)
            return
        sense = self._run(task, unit[16:32])
        task.status = _sense(tag, sense)

    def _run(self, task: _Task, cdb: bytes) -> tuple[int, int, int] | None:
        """Run a command; return its sense where it fails."""
        if cdb[0] in (_READ, _WRITE):
            return self._xdata(task, cdb)
        if cdb[0] == _WRITE_16:
            return self._write(task, cdb)
        if cdb[0] == _READY:
            return _NO_MEDIUM
        if cdb[0] == _INQUIRY and not cdb[1]:
            task.reply = _IDENTITY[: int.from_bytes(cdb[3:5], "big")]
            return None
        if cdb[0] == _REPORT_UNITS:
            task.reply = _UNITS[: int.from_bytes(cdb[6:10], "big")]
            return None
        if cdb[0] >= 0xC0:  # vendors' commands
            self._hardware.object_to(f"command {cdb[0]:#04x} is not known")
        return _BAD_FIELD if cdb[0] == _INQUIRY else _UNKNOWN

    def _xdata(self, task: _Task, cdb: bytes) -> tuple[int, int, int] | None:
        memory, address = self._hardware.memory, int.from_bytes(cdb[2:5], "big")
        if address & ~_SPACE_MASK != _SPACE:
            self._hardware.object_to(f"XDATA address {address:#x}, expected it at 0x500000")
            return _BAD_FIELD
        bank = address >> 16 & 1
        if cdb[0] == _READ:
            task.reply = memory.read(address & 0xFFFF, cdb[1], bank)
        else:
            memory.write(address & 0xFFFF, cdb[1], bank)
        return None

    def _write(self, task: _Task, cdb: bytes) -> tuple[int, int, int] | None:
        block, sectors = struct.unpack(">QI", cdb[2:14])
        size = sectors * SECTOR
        if block or not 0 < size <= _LONGEST_WRITE:
            self._hardware.object_to(f"WRITE(16) of {size} bytes to block {block}")
            return _BAD_FIELD
        if not self._prepared():
            return _NO_MEDIUM
        if self._armed < 3:
            self._hardware.object_to("WRITE(16) before 0x171 was written after the last one")
        self._armed = 0
        self._hardware.memory.scribble_submission(_ENTRIES)
        task.wanted, task.place = size, self._allocate(size)
        return self.write_sense

    def _task(self, stream: int) -> _Task | None:
        return self._tasks.get(stream)

    # ---- bulk ---------------------------------------------------------------------------------

    def put(self, endpoint: int, stream: int, data: memoryview) -> int:
        """Accept a command unit, or data of the command that the stream belongs to."""
        if endpoint in self._halted:
            raise Stalled
        if endpoint == COMMAND and not stream:
            self._start(bytes(data))
            return len(data)
        task = self._task(stream)
        if endpoint != DATA_OUT or task is None or not task.wanted or task.place is None:
            return 0
        size = min(task.wanted, len(data))
        self._hardware.memory.shared[task.place : task.place + size] = data[:size]
        task.place += size
        task.wanted -= size
        self._hardware.move(DATA_OUT, size / self._hardware.bulk_rate)
        return size

    def take(self, endpoint: int, stream: int, room: int) -> bytes:
        """Return a command's data, or its status once all its data was transferred."""
        if endpoint in self._halted:
            raise Stalled
        task = self._task(stream)
        if task is None:
            return b""
        if endpoint == DATA_IN:
            found, task.reply = task.reply[:room], task.reply[room:]
            return found
        if endpoint == STATUS and not task.wanted and not task.reply:
            del self._tasks[stream]
            self._order.remove(stream)
            return task.status
        return b""

    @property
    def awaits_card(self) -> bool:
        """Return False: nothing here waits for the card."""
        return False


class Stalled(Exception):
    """The endpoint, or the control request, answers with STALL."""


def _response(tag: int, code: int) -> bytes:
    """Build a response information unit (T10/2095-D, 6.2.4)."""
    return struct.pack(">BxHxxxB", _RESPONSE_UNIT, tag, code)


def _sense(tag: int, sense: tuple[int, int, int] | None) -> bytes:
    """Build a sense information unit (6.2.3), with sense data of fixed form (SPC-4, 4.5.3)."""
    data = b""
    if sense is not None:
        key, code, qualifier = sense
        data = struct.pack(">BxBxxxxBxxxxBB4x", 0x70, key, 10, code, qualifier)
    status = _GOOD if sense is None else _CHECK_CONDITION
    return struct.pack(">BxHxxB7xH", _SENSE_UNIT, tag, status, len(data)) + data
