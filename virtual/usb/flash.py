"""The bridge's SPI flash part, and the chip's controller in front of it.

Controller: asm2464pd-firmware src/include/registers.h (0xC89F to 0xC8AF, buffer at 0x7000),
handmade/e4_flash.py (how it is enabled, how a transfer is laid out), pull request 83 (at high speed
one packet of 64 bytes reaches the buffer; the first byte of a read may be stale). Part: Winbond
W25Q80DV data sheet, chapters 7 (status) and 8 (commands).
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import Protocol

from ugpu.virtual.usb.memory import FLASH_BUFFER_SIZE, Memory
from ugpu.virtual.usb.meter import VirtualClock

SIZE = 1 << 20
JEDEC = bytes([0xEF, 0x40, 0x14])
BUSY, WRITE_ENABLED, PROTECTED = 0x01, 0x02, 0x1C
_PAGE, _SECTOR, _BLOCK = 256, 4 << 10, 64 << 10
_ENABLE, _ENABLED = 0xCA81, 0x01
_AUX, _BUFFER_MODE = 0xC805, 0x02
_ADDRESS_LOW, _ADDRESS_MIDDLE, _LENGTH_HIGH, _LENGTH_LOW = 0xC8A1, 0xC8A2, 0xC8A3, 0xC8A4
_GO, _COMMAND, _ADDRESS_HIGH, _ADDRESS_MODE, _MODE = 0xC8A9, 0xC8AA, 0xC8AB, 0xC8AC, 0xC8AD
_OFFSET = 0xC8AE
_THREE_BYTES = 0x03  # bits 1:0 of the address mode
_FROM_BUFFER = 0x01  # of the mode
# Bytes of a packet that the buffer keeps: e4_flash.py, pull request 83.
_KEPT, _KEPT_HIGH_SPEED = 128, 64
# Typical times from the data sheet (9.6), and the controller's clock, which is inferred.
_PROGRAM_S, _SECTOR_S, _BLOCK_S, _STATUS_S, _BYTE_S = 0.7e-3, 45e-3, 150e-3, 10e-3, 1e-6


class Bridge(Protocol):
    """The bridge chip, as seen by its flash. flash_written: called for each program and erase."""

    memory: Memory
    clock: VirtualClock
    flash_written: Callable[[], None]

    @property
    def super_speed(self) -> bool:
        """Whether the link runs at SuperSpeed or above."""
        ...

    def object_to(self, text: str) -> None:
        """Record an access that no driver should make."""
        ...


class Flash:
    """The flash part, protected from the start.

    cells: contents, which persist without power. status: the status register. worn: bits of bytes
    that can no longer be cleared, by address. dropped: how many of the next page programs have no
    effect. To pull the cable between two writes, use `Hardware.flash_written`.
    """

    def __init__(self, hardware: Bridge, seed: int) -> None:
        self.cells = bytearray(factory())
        self.status = PROTECTED
        self.worn: dict[int, int] = {}
        self.dropped = 0
        self.writes = 0  # programs and erases that took place
        self._hardware = hardware
        self._memory: Memory = hardware.memory
        self._random = random.Random(seed)
        self._ready_at = 0.0
        self._memory.hook(_GO, read=lambda: 0, write=self._go)

    def stage(self, packet: bytes) -> None:
        """Store a packet of the OUT endpoint in the buffer."""
        keep = _KEPT if self._hardware.super_speed else _KEPT_HIGH_SPEED
        buffer = self._memory.flash_buffer
        buffer[: min(keep, len(packet))] = packet[:keep]
        if self._hardware.super_speed and len(packet) > keep:
            buffer[keep : len(packet)] = self._random.randbytes(len(packet) - keep)

    def _register(self, address: int) -> int:
        return self._memory.read(address, 1)[0]

    def _go(self, value: int) -> None:
        if not value & 1:
            return
        enabled = self._register(_ENABLE) & _ENABLED and self._register(_AUX) & _BUFFER_MODE
        if not enabled or self._register(_OFFSET) or self._register(_OFFSET + 1):
            self._object("a transfer of the flash controller before it is set up")
            return
        length = self._register(_LENGTH_HIGH) << 8 | self._register(_LENGTH_LOW)
        address = 0
        if self._register(_ADDRESS_MODE) & 3 == _THREE_BYTES:
            low, middle = self._register(_ADDRESS_LOW), self._register(_ADDRESS_MIDDLE)
            address = (self._register(_ADDRESS_HIGH) << 16 | middle << 8 | low) % SIZE
        self._hardware.clock.advance(length * _BYTE_S)
        self._command(self._register(_COMMAND), address, length)

    def _command(self, command: int, address: int, length: int) -> None:
        busy = self._hardware.clock.now() < self._ready_at
        if busy and command != 0x05:
            self._object(f"flash command {command:#04x} while the part is busy")
            return
        outward = bool(self._register(_MODE) & _FROM_BUFFER)
        if outward is not (command in (0x01, 0x02)):
            self._object(f"flash command {command:#04x} with data in the wrong direction")
            return
        if command == 0x05:
            self._give(bytes([self.status | (BUSY if busy else 0)]) * length)
        elif command == 0x9F:
            self._give(JEDEC[:length])
        elif command == 0x03:
            twice = self.cells + self.cells
            self._give(bytes(twice[address : address + length]))
        elif command in (0x04, 0x06):
            self.status = self.status & ~WRITE_ENABLED | (WRITE_ENABLED if command & 2 else 0)
        elif command in _WRITES:
            self._write(command, address, length)
        else:
            self._object(f"unknown flash command {command:#04x}")

    def _give(self, data: bytes) -> None:
        if len(data) > FLASH_BUFFER_SIZE:
            self._object(f"a flash read of {len(data)} bytes into a buffer of {FLASH_BUFFER_SIZE}")
            data = data[:FLASH_BUFFER_SIZE]
        stale = len(data) > 1 and self._random.random() < 0.5
        self._memory.flash_buffer[stale : len(data)] = data[stale:]

    def _write(self, command: int, address: int, length: int) -> None:
        if not self.status & WRITE_ENABLED:
            self._object(f"flash command {command:#04x} without write enable")
            return
        self.status &= ~WRITE_ENABLED
        if command == 0x01:
            self.status = self._memory.flash_buffer[0] & 0xFC
            self._ready_at = self._hardware.clock.now() + _STATUS_S
            return
        if self.status & PROTECTED:
            self._object(f"flash command {command:#04x} while the part is protected")
            return
        self.writes += 1
        self._hardware.flash_written()
        if command == 0x02:
            self._program(address, length)
            took = _PROGRAM_S
        else:
            size, took = (_SECTOR, _SECTOR_S) if command == 0x20 else (_BLOCK, _BLOCK_S)
            start = address - address % size
            self.cells[start : start + size] = b"\xff" * size
        self._ready_at = self._hardware.clock.now() + took

    def _program(self, address: int, length: int) -> None:
        """Clear bits; bytes beyond the end of a page wrap to its start."""
        if not 0 < length <= _PAGE:
            self._object(f"a page program of {length} bytes, expected 1 to {_PAGE}")
            return
        if self.dropped:
            self.dropped -= 1
            return
        page = address - address % _PAGE
        for at, byte in enumerate(self._memory.flash_buffer[:length]):
            place = page + (address + at) % _PAGE
            self.cells[place] &= byte | self.worn.get(place, 0)

    def _object(self, text: str) -> None:
        self._hardware.object_to(text)


_WRITES = (0x01, 0x02, 0x20, 0xD8)


def wrap(body: bytes) -> bytes:
    """Return an image in the boot ROM's format (handmade/Makefile, firmware/split.py): length,
    body, mark, sum of the bytes, CRC-32."""
    tail = bytes([0xA5, sum(body) & 0xFF]) + zlib.crc32(body).to_bytes(4, "little")
    return len(body).to_bytes(4, "little") + body + tail


def firmware(vendor: int = 0xADD1, product: int = 0x0001, size: int = 3000, seed: int = 0) -> bytes:
    """Return a body such as the firmware's compiler produces: a jump, code, two device descriptors,
    names."""
    ids = vendor.to_bytes(2, "little") + product.to_bytes(2, "little")
    descriptors = b"".join(
        bytes([18, 1, 0, release, 0, 0, 0, packet]) + ids + bytes([1, 0, 1, 2, 3, 1])
        for release, packet in ((2, 64), (3, 9))
    )
    start = b"\x02\x00\x26" + descriptors + b"tiny\0custom v0.1\0"
    return start + random.Random(seed).randbytes(size - len(start))


def factory() -> bytes:
    """Return the content of a new part: two blocks of configuration, and firmware."""
    configuration = random.Random(0x100).randbytes(0x100)
    return (configuration + wrap(firmware())).ljust(SIZE, b"\xff")
