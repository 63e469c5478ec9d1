"""A program that makes NVIDIA's ioctls on files that only bear the nodes' names: every one of them
fails with ENOTTY, which is enough for who watches. Run as a script with the nodes' folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path

RM_ALLOC, RM_ALLOC_OLD, RM_CONTROL = 0xC030462B, 0xC020462B, 0xC020462A
UVM_INITIALIZE = 0x30000001
CLASSLIST = 0x00800201


def make_nodes(folder: Path) -> Path:
    """Make the files; return the prefix to watch."""
    for name in ("nvidiactl", "nvidia0", "nvidia-uvm"):
        (folder / name).write_bytes(bytes(8192))
    return folder / "nvidia"


def _ask(fd: int, request: int, block: object) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    library.ioctl(ctypes.c_int(fd), ctypes.c_ulong(request), block)


def _alloc(fd: int, number: int, parameters: int, size: int) -> None:
    block = ctypes.create_string_buffer(48)
    struct.pack_into("<IIIIQQII", block, 0, 1, 1, 0x5C000001, number, parameters, 0, size, 0)
    _ask(fd, RM_ALLOC, block)


def _control(fd: int) -> None:
    classes = (ctypes.c_uint32 * 3)(0xC86F, 0xCBC0, 0xC8B5)
    inner = ctypes.create_string_buffer(16)
    struct.pack_into("<IxxxxQ", inner, 0, 3, ctypes.addressof(classes))
    block = ctypes.create_string_buffer(32)
    place = ctypes.addressof(inner)
    struct.pack_into("<IIIIQII", block, 0, 1, 2, CLASSLIST, 0, place, 16, 0)
    _ask(fd, RM_CONTROL, block)


def main(folder: Path) -> None:
    """Make one call of every kind there is."""
    control = os.open(folder / "nvidiactl", os.O_RDWR)
    device = ctypes.create_string_buffer(56)
    struct.pack_into("<II", device, 0, 0, 0x1001)
    _alloc(control, 0x80, ctypes.addressof(device), 0)  # the size is that of the class
    _alloc(control, 0x80, 24, 56)  # a bad pointer within
    _ask(control, RM_ALLOC, ctypes.c_void_p(16))  # a bad pointer
    old = ctypes.create_string_buffer(32)
    struct.pack_into("<IIIIQII", old, 0, 1, 1, 3, 0x80, ctypes.addressof(device), 56, 0)
    _ask(control, RM_ALLOC_OLD, old)
    _control(control)
    _ask(control, 0xC0FF46FE, ctypes.create_string_buffer(255))  # no such escape
    copy = fcntl.fcntl(control, fcntl.F_DUPFD_CLOEXEC, 50)
    thread = threading.Thread(target=_control, args=(copy,))
    thread.start()
    thread.join()
    relative = os.open(folder, os.O_RDONLY)
    uvm = os.open("nvidia-uvm", os.O_RDWR, dir_fd=relative)
    _ask(uvm, UVM_INITIALIZE, ctypes.create_string_buffer(16))
    mmap.mmap(control, 4096).close()
    with contextlib.suppress(FileNotFoundError):
        os.open(folder / "nvidia9", os.O_RDWR)
    os.close(os.open(os.devnull, os.O_RDONLY))  # not ours
    os.close(uvm)
    os.close(control)
    subprocess.run([sys.executable, __file__, str(folder), "child"], check=True)


def child(folder: Path) -> None:
    """What the program's own child does."""
    os.close(os.open(folder / "nvidia0", os.O_RDWR))


if __name__ == "__main__":
    if sys.argv[2:] == ["child"]:
        child(Path(sys.argv[1]))
    else:
        main(Path(sys.argv[1]))
        sys.exit(7)
