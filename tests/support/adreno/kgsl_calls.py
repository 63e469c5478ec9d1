"""A program that makes KGSL's calls on a file that only bears the node's name: every one fails with
ENOTTY, which is enough for who watches. Run as a script with the node's folder.

Numbers and offsets by hand from msm_kgsl.h.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys
from pathlib import Path

GPU_COMMAND, GETPROPERTY, GPUOBJ_SYNC = 0xC040094A, 0xC0180902, 0x40100949
ADDRESS, OBJECT, DONE = 0x5_0000_0000, 3, 9
NOP = (0x70100002, 0x11, 0x22)  # CP_NOP with two words
PAGES = 4


def make_node(folder: Path) -> Path:
    """Make the file; return the prefix to watch."""
    (folder / "kgsl-3d0").write_bytes(bytes((OBJECT + PAGES) * mmap.PAGESIZE))
    return folder / "kgsl-3d"


def _ask(fd: int, request: int, block: object) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    library.ioctl(ctypes.c_int(fd), ctypes.c_ulong(request), block)


def submit(fd: int, words: int) -> None:
    """GPU_COMMAND of one indirect buffer."""
    command = ctypes.create_string_buffer(32)
    struct.pack_into("<QQQII", command, 0, 0, ADDRESS, 4 * words, 1, OBJECT)
    block = ctypes.create_string_buffer(64)
    struct.pack_into("<QQII", block, 0, 0x10, ctypes.addressof(command), 32, 1)
    struct.pack_into("<I", block, 56, 1)
    _ask(fd, GPU_COMMAND, block)


def main(folder: Path) -> None:
    """A property, a synchronisation, two submissions with other memory, and one more."""
    fd = os.open(folder / "kgsl-3d0", os.O_RDWR)
    value = ctypes.create_string_buffer(40)
    block = ctypes.create_string_buffer(24)
    struct.pack_into("<IxxxxQQ", block, 0, 1, ctypes.addressof(value), 40)
    _ask(fd, GETPROPERTY, block)
    items = ctypes.create_string_buffer(48)
    struct.pack_into("<QQII", items, 24, 64, 128, OBJECT, 1)
    sync = ctypes.create_string_buffer(16)
    struct.pack_into("<QII", sync, 0, ctypes.addressof(items), 24, 2)
    _ask(fd, GPUOBJ_SYNC, sync)
    size = PAGES * mmap.PAGESIZE
    memory = mmap.mmap(fd, size, offset=OBJECT * mmap.PAGESIZE)
    for number in range(3):
        struct.pack_into("<3I", memory, 0, *NOP[:2], NOP[2] + number)
        submit(fd, 3)
    os._exit(DONE)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
