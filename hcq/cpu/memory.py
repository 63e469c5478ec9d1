"""Host memory at fixed, aligned addresses, and executable memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.errors import HostError, OutOfMemory

ALIGN = 256


def obtain(size: int) -> NDArray[np.uint8]:
    """Allocate memory that is freed with the last array that refers to it."""
    return np.empty(size, np.uint8)


class HostMemory:
    """`size` bytes at `address`, aligned to 256; released with the last reference."""

    def __init__(self, size: int) -> None:
        self.size = size
        if size > total_memory():
            raise OutOfMemory(
                "the request exceeds this machine's memory", size=size, machine=total_memory()
            )
        try:
            block = obtain(size + ALIGN)
        except (MemoryError, ValueError):
            raise OutOfMemory("the host is out of memory", size=size) from None
        start = -block.ctypes.data % ALIGN
        self.array = block[start : start + size]
        self.address: int = self.array.ctypes.data
        self.view: memoryview = self.array.data

    def close(self) -> None:
        """Drop the memory; other views of it keep it alive."""
        self.array = self.array[:0]
        self.view = self.array.data


class CodeMemory:
    """Memory that holds code: written once by `fill`, then readable and executable only. words:
    64-bit numbers at `words_at`, a page that follows the code, which stay writable."""

    def __init__(self, size: int, words: int = 0) -> None:
        self.words_at = -(-max(1, size) // mmap.PAGESIZE) * mmap.PAGESIZE
        self.size = self.words_at + -(-8 * words // mmap.PAGESIZE) * mmap.PAGESIZE
        self._map = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        anchor = ctypes.c_char.from_buffer(self._map)
        self._anchor: ctypes.c_char | None = anchor
        self.address = ctypes.addressof(anchor)

    def fill(self, image: bytes) -> None:
        """Write the image and make it executable; call once."""
        self._map[: len(image)] = image
        library = ctypes.CDLL(None, use_errno=True)
        protection = mmap.PROT_READ | mmap.PROT_EXEC
        if library.mprotect(
            ctypes.c_void_p(self.address), ctypes.c_size_t(self.words_at), protection
        ):
            reason = os.strerror(ctypes.get_errno())
            raise HostError(f"the system does not allow executable memory: {reason}")
        flush_instructions(self.address, self.words_at)

    def put_word(self, number: int, value: int) -> None:
        """Change a word, in one access: other threads see the old value or the new one."""
        place = self.address + self.words_at + 8 * number
        ctypes.c_uint64.from_address(place).value = value

    def holds(self, address: int) -> bool:
        return self.address <= address < self.address + self.size

    def close(self) -> None:
        """Unmap; no code may run in it."""
        if not self._map.closed:
            self._anchor = None
            self._map.close()


def flush_instructions(
    address: int,
    size: int,
    machine: str = "",
    find: Callable[[str], object] = ctypes.CDLL,
) -> None:
    """Make written data visible to instruction fetches; x86 does this itself. machine: default:
    this one.

    Facts: Arm Architecture Reference Manual (DDI 0487), B2.2.5 "Concurrent modification and
    execution of instructions": data and instruction caches need not agree. `__clear_cache` is part
    of the compiler run-time (GCC manual, "Other Builtins", __builtin___clear_cache). HostError if
    this process has none.
    """
    if (machine or platform.machine()) in ("x86_64", "AMD64", "i686"):
        return
    try:
        clear = getattr(find("libgcc_s.so.1"), "__clear_cache")
    except (OSError, AttributeError):
        raise HostError("no __clear_cache in libgcc_s.so.1: new code cannot be run") from None
    clear(ctypes.c_void_p(address), ctypes.c_void_p(address + size))


def total_memory() -> int:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
