"""A card's own memory, as sparse memory of this process."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os

from ugpu.hcq.errors import OutOfMemory

_MAP_NORESERVE = 0x4000  # Linux; module mmap defines it from Python 3.13 on


class SparseMemory:
    """Zeros that take no memory of the host before they are written. Sizes are bytes.

    memory: the content. base: its address in this process. descriptor: of the unnamed file behind
    it, which other processes can map, or -1.
    """

    def __init__(self, size: int, *, shared: bool, smaller: str) -> None:
        """Reserve the memory. shared: back it by a file. smaller: how a smaller card is opened."""
        self.size = size
        self.descriptor = -1
        flags = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        try:
            if shared:
                self.descriptor = _sealed_file(size)
            self.memory = mmap.mmap(self.descriptor, size, flags=flags | _MAP_NORESERVE)
        except OSError as error:  # vm.overcommit_memory=2, or a limit on address space
            raise OutOfMemory(
                "cannot reserve address space for the virtual card's memory; open it with less "
                f"memory, as in {smaller}",
                wanted=size,
                reason=error.strerror,
            ) from error
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def forget(self, start: int, size: int) -> None:
        """Return whole pages to the host; they read as zeros afterwards."""
        self.memory.madvise(
            mmap.MADV_DONTNEED if self.descriptor < 0 else mmap.MADV_REMOVE, start, size
        )

    def close(self) -> None:
        """Return the memory to the host; later reads give zeros."""
        self.forget(0, self.size)
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _sealed_file(size: int) -> int:
    """Return a memory file whose length is sealed, so that mappings of it always stay valid."""
    descriptor = os.memfd_create("vram", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor
