"""A program of the guest: a channel and memory of nouveau that outlive suspends of the machine.

    nouveau_suspend.py COPY_CLASS TIMES

Prints "right STEP" or "wrong STEP". Source: Linux 7.3 include/uapi/drm/nouveau_drm.h, drm.h;
drivers/gpu/drm/nouveau/nouveau_abi16.h; open-gpu-doc classes/dma-copy. All structs are of the
64-bit ABI.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
import sys
from pathlib import Path
from typing import NamedTuple

NODE = "/dev/dri/renderD128"
SIZE = 64 << 10
SEEN = 512  # bytes that the processor reads of video memory: each access is a message
POWER = Path("/sys/power")
KERNEL_ADDRESSES = (1 << 38, 1 << 37)  # start and size, for the kernel's own mappings
FIRST_ADDRESS = 1 << 32
CHANNEL_ALLOC, OBJECT_ALLOC, VM_INIT, VM_BIND, EXEC, NEW = 0x42, 0x44, 0x50, 0x51, 0x52, 0x80
SYNC_CREATE, SYNC_WAIT, SYNC_RESET = 0xBF, 0xC3, 0xC4
VRAM, HOST, MAPPABLE = 1 << 1, 1 << 2, 1 << 3
COPY_RUNLIST, NO_HANDLE = 0x30, 0xFFFF_FFFF
LIMIT_NS = (1 << 63) - 1
SUBCHANNEL = 4
SET_OBJECT, OFFSETS, LAUNCH = 0x0, 0x400, 0x300
PITCHED, FLUSH, NOT_PIPELINED = 0x180, 0x4, 0x2


class Buffer(NamedTuple):
    """A buffer. address: of the GPU. view: of this process."""

    address: int
    view: mmap.mmap


class Nouveau:
    """A client of the driver with an address space and a channel of a copy engine."""

    def __init__(self, copy_class: int) -> None:
        self._node = os.open(NODE, os.O_RDWR | os.O_CLOEXEC)
        self._next = FIRST_ADDRESS
        self._class = copy_class
        self._ask(VM_INIT, struct.pack("<QQ", *KERNEL_ADDRESSES))
        request = struct.pack("<IIiII64xI", NO_HANDLE, COPY_RUNLIST, 0, 0, 0, 0)
        self._channel = struct.unpack_from("<i", self._ask(CHANNEL_ALLOC, request), 8)[0]
        self._ask(OBJECT_ALLOC, struct.pack("<iIi", self._channel, 0xBEEF, copy_class))
        self._sync = struct.unpack_from("<I", self._ask(SYNC_CREATE, bytes(8)))[0]
        self._commands = self.buffer(HOST)

    def _ask(self, number: int, block: bytes) -> bytes:
        """Issue an ioctl that reads and writes its block; return the block."""
        data = bytearray(block)
        fcntl.ioctl(self._node, 3 << 30 | len(data) << 16 | ord("d") << 8 | number, data)
        return bytes(data)

    def buffer(self, domain: int) -> Buffer:
        """Allocate, map for the GPU and for this process."""
        request = struct.pack("<IIQQQIIII", 0, domain | MAPPABLE, SIZE, 0, 0, 0, 0, 0, 0)
        handle, _, size, _, place = struct.unpack_from("<IIQQQ", self._ask(NEW, request))
        address, self._next = self._next, self._next + (SIZE << 4)
        operation = ctypes.create_string_buffer(
            struct.pack("<IIIIQQQ", 0, 0, handle, 0, address, 0, size)
        )
        pointer = ctypes.addressof(operation)
        self._ask(VM_BIND, struct.pack("<IIIIQQQ", 1, 0, 0, 0, 0, 0, pointer))
        return Buffer(address, mmap.mmap(self._node, SIZE, offset=place))

    def copy(self, source: Buffer, target: Buffer) -> None:
        """Copy by the channel, and wait."""
        words = [
            _header(SET_OBJECT, 1), self._class,
            _header(OFFSETS, 8), source.address >> 32, source.address & 0xFFFF_FFFF,
            target.address >> 32, target.address & 0xFFFF_FFFF, SIZE, SIZE, SIZE, 1,
            _header(LAUNCH, 1), PITCHED | FLUSH | NOT_PIPELINED,
        ]  # fmt: skip
        raw = struct.pack(f"<{len(words)}I", *words)
        self._commands.view[: len(raw)] = raw
        push = ctypes.create_string_buffer(struct.pack("<QII", self._commands.address, len(raw), 0))
        signal = ctypes.create_string_buffer(struct.pack("<IIQ", 0, self._sync, 0))
        handles = ctypes.create_string_buffer(struct.pack("<I", self._sync))
        self._ask(SYNC_RESET, struct.pack("<QII", ctypes.addressof(handles), 1, 0))
        places = ctypes.addressof(signal), ctypes.addressof(push)
        self._ask(EXEC, struct.pack("<IIIIQQQ", self._channel, 1, 0, 1, 0, *places))
        self._ask(
            SYNC_WAIT, struct.pack("<QqIIII", ctypes.addressof(handles), LIMIT_NS, 1, 0, 0, 0)
        )


def _header(method: int, count: int) -> int:
    return 1 << 29 | count << 16 | SUBCHANNEL << 13 | method >> 2


def pattern(seed: int) -> bytes:
    """Return content that differs in each word."""
    return b"".join(struct.pack("<I", (word * 2654435761 + seed) & 0xFFFF_FFFF)
                    for word in range(SIZE // 4))  # fmt: skip


def say(name: str, *, right: bool) -> None:
    """Print the result of a step."""
    print("right" if right else "wrong", name, flush=True)


def suspend() -> None:
    """Suspend all devices of the machine, and resume them. The kernel's test mode leaves out what
    comes after: the processors and the platform."""
    (POWER / "pm_test").write_text("devices")
    (POWER / "state").write_text("mem")


def main() -> int:
    copy_class, times = int(sys.argv[1], 16), int(sys.argv[2])
    driver = Nouveau(copy_class)
    video, other, host, back = (driver.buffer(kind) for kind in (VRAM, VRAM, HOST, HOST))

    def check(name: str, place: Buffer, content: bytes) -> None:
        seen = place.view[:SEEN] == content[:SEEN]
        driver.copy(place, back)
        say(name, right=seen and back.view[:] == content)

    host.view[:] = pattern(1)
    driver.copy(host, video)
    check("copy before", video, pattern(1))
    for number in range(times):
        suspend()
        check(f"memory after suspend {number}", video, pattern(1 + number))
        driver.copy(video, other)
        check(f"copy after suspend {number}", other, pattern(1 + number))
        host.view[:] = pattern(2 + number)
        driver.copy(host, video)
    print("right end", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
