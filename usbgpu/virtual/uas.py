"""The stock firmware with tinygrad's patch: commands by USB Attached SCSI, with streams.

Facts: tinygrad runtime/support/usb.py at f1041dc0ac (endpoints, commands, SRAM by WRITE(16));
asm2464pd-firmware USBGPU.md and handmade/src/usb.h (pipe usage of each endpoint, streams); USB
Attached SCSI (T10/2095-D, information units). The slot is powered and trained by itself.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from usbgpu.usb import Kind, Recipient
from usbgpu.virtual.custom import Setup
from usbgpu.virtual.hardware import Hardware
from usbgpu.virtual.memory import SECTOR, SRAM

DATA_IN, DATA_OUT, STATUS, COMMAND = 0x81, 0x02, 0x83, 0x04
_COMMAND_UNIT, _SENSE_UNIT, _RESPONSE_UNIT = 0x01, 0x03, 0x04
_UNIT_BYTES = 32
_READ, _WRITE, _WRITE_16 = 0xE4, 0xE5, 0x8A
_SPACE, _SPACE_MASK = 0x50_0000, 0x1_FFFF
_LONGEST_WRITE = 64 << 10
_GOOD, _CHECK_CONDITION = 0, 2
_INVALID_UNIT, _OVERLAPPED_TAG = 0x02, 0x0A
_CLEAR_FEATURE = 0x01


@dataclass
class _Task:
    """A command that has not ended. wanted: bytes that it still takes from the host."""

    tag: int
    wanted: int = 0
    place: int = 0
    reply: bytes = b""
    status: bytes = field(default=b"")


class UasFirmware:
    """Commands are carried out in their order; each has its tag's stream for data and status."""

    identity = (0xADD1, 0x0001, 0x0001, "tiny", "AS2462")
    streams = 31
    powers_slot = True
    alternates = ((DATA_IN, DATA_OUT), (DATA_IN, DATA_OUT, STATUS, COMMAND))
    alternates_high_speed = ((DATA_IN, DATA_OUT),)

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self.hung = False
        self._halted: set[int] = set()
        self._tasks: dict[int, _Task] = {}
        self._order: list[int] = []

    # ---- control ------------------------------------------------------------------------------

    def control(self, setup: Setup, _data: bytes) -> bytes | None:
        """Serve a request. There are no vendor requests: those are refused by a STALL."""
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
            task.status = struct.pack(">BBH4x", _RESPONSE_UNIT, 0, tag)[:7] + bytes(
                (_OVERLAPPED_TAG,)
            )
            task.wanted = 0
            return
        task = _Task(tag)
        self._tasks[tag] = task
        self._order.append(tag)
        good = self._run(task, unit[16:32])
        task.status = _sense(tag, _GOOD if good else _CHECK_CONDITION)

    def _run(self, task: _Task, cdb: bytes) -> bool:
        memory = self._hardware.memory
        address = int.from_bytes(cdb[2:5], "big")
        if cdb[0] in (_READ, _WRITE):
            if address & ~_SPACE_MASK != _SPACE:
                self._hardware.object_to(f"XDATA address {address:#x}, expected it at 0x500000")
                return False
            bank = address >> 16 & 1
            if cdb[0] == _READ:
                task.reply = memory.read(address & 0xFFFF, cdb[1], bank)
            else:
                memory.write(address & 0xFFFF, cdb[1], bank)
            return True
        if cdb[0] == _WRITE_16:
            block, sectors = struct.unpack(">QI", cdb[2:14])
            size, place = sectors * SECTOR, block * SECTOR
            if size > _LONGEST_WRITE or place + size > SRAM.size:
                self._hardware.object_to(f"WRITE(16) of {size} bytes at {place:#x} of SRAM")
                return False
            task.wanted, task.place = size, SRAM.offset + place
            return True
        self._hardware.object_to(f"command {cdb[0]:#04x} is not known")
        return False

    def _task(self, stream: int) -> _Task | None:
        return self._tasks.get(stream)

    # ---- bulk ---------------------------------------------------------------------------------

    def put(self, endpoint: int, stream: int, data: memoryview) -> int:
        """Take a command unit, or data of the command that the stream belongs to."""
        if endpoint in self._halted:
            raise Stalled
        if endpoint == COMMAND and not stream:
            self._start(bytes(data))
            return len(data)
        task = self._task(stream)
        if endpoint != DATA_OUT or task is None or not task.wanted:
            return 0
        size = min(task.wanted, len(data))
        self._hardware.memory.shared[task.place : task.place + size] = data[:size]
        task.place += size
        task.wanted -= size
        self._hardware.clock.advance(size / self._hardware.bulk_rate)
        return size

    def take(self, endpoint: int, stream: int, room: int) -> bytes:
        """Give a command's data, or its status once all its data went over."""
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
        """Nothing here waits for the card."""
        return False


class Stalled(Exception):
    """The endpoint, or the control request, answers with STALL."""


def _sense(tag: int, status: int) -> bytes:
    """Build a sense information unit without sense data."""
    return struct.pack(">BBHHB7xH", _SENSE_UNIT, 0, tag, 0, status, 0)
