"""What tinygrad opens of NVIDIA's driver, forwarded to a virtual node of this process.

tinygrad reaches device files by one class, FileIOInterface (0.14.0, runtime/support/hcq.py), and
mapped memory by another, MMIOInterface. `install` puts the two here in their place in ops_nv; the
driver itself is as installed. A file's number is the node's handle, which is what its calls name.

A program maps memory where it wants (MAP_FIXED) and sees the same pages there as the GPU. So the
memory of the virtual machine is made of shared pages, which mremap(2) maps a second time, and
`share_memory` comes before the machine is built. The doorbell works when it is written: its page
is the one mapping that is no memory.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from types import SimpleNamespace
from typing import Any

from ugpu.hcq.transport.node import NodeMapping
from ugpu.virtual.bus import sparse
from ugpu.virtual.nvidia.node import VirtualNode

_MAYMOVE, _FIXED = 1, 2  # MREMAP_*, linux/mman.h
_FAILED = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mremap.restype = _libc.mmap.restype = ctypes.c_void_p
_libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int,
                         ctypes.c_void_p]  # fmt: skip
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                       ctypes.c_long]  # fmt: skip
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def share_memory() -> None:
    """Make memory of virtual machines that are built from now on of shared pages.

    Shared pages are scrubbed by MADV_REMOVE; MADV_DONTNEED would leave them as they are.
    """
    shared: Any = SimpleNamespace(
        mmap=mmap.mmap,
        MAP_PRIVATE=mmap.MAP_SHARED,
        MAP_ANONYMOUS=mmap.MAP_ANONYMOUS,
        MADV_DONTNEED=mmap.MADV_REMOVE,
        MADV_REMOVE=mmap.MADV_REMOVE,
        MAP_SHARED=mmap.MAP_SHARED,
    )
    sparse.mmap = shared


def install(node: VirtualNode, ops_nv: Any) -> None:
    """Let tinygrad's module `ops_nv` reach `node`, which stays the caller's."""
    mappings: dict[int, NodeMapping] = {}  # by the address that the program has
    original: Any = ops_nv.MMIOInterface

    class NodeFile:
        """An open device file; takes the place of FileIOInterface."""

        def __init__(self, path: str, flags: int) -> None:
            del flags
            self.fd = node.open(path)

        def __del__(self) -> None:
            if hasattr(self, "fd") and self.fd in node.files:
                node.release(self.fd)

        def ioctl(self, request: int, argument: Any) -> int:
            size, where = ctypes.sizeof(argument), ctypes.addressof(argument)
            block = (ctypes.c_ubyte * size).from_address(where)
            node.ioctl(self.fd, request, memoryview(block).cast("B"))
            return 0

        def mmap(self, start: int | None, size: int, prot: int, flags: int, offset: int) -> int:
            mapping = node.map(self.fd, size, offset)
            if mapping.view is None:  # the doorbell: addresses that nobody may touch
                anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
                address = _libc.mmap(None, size, 0, anonymous, -1, 0)
            elif start is None:
                address = _libc.mremap(mapping.address, 0, size, _MAYMOVE, None)
            else:
                address = _libc.mremap(mapping.address, 0, size, _MAYMOVE | _FIXED, start)
            if address in (None, _FAILED):
                mapping.close()
                code = ctypes.get_errno()
                raise OSError(code, f"mapping {size} bytes: {os.strerror(code)}")
            mappings[address] = mapping
            return int(address)

        @staticmethod
        def anon_mmap(start: int, size: int, prot: int, flags: int, offset: int) -> int:
            address = _libc.mmap(start, size, prot, flags, -1, offset)
            if address in (None, _FAILED):
                code = ctypes.get_errno()
                raise OSError(code, f"memory of the host: {os.strerror(code)}")
            return int(address)

        @staticmethod
        def munmap(address: int, size: int) -> int:
            mapping = mappings.pop(address, None)
            if mapping is not None:
                mapping.close()
            return int(_libc.munmap(address, size))

    class Doorbell:
        """Words of the usermode page, by their number."""

        def __init__(self, mapping: NodeMapping) -> None:
            self._mapping = mapping

        def __getitem__(self, word: int) -> int:
            return self._mapping.read32(4 * word)

        def __setitem__(self, word: int, value: int) -> None:
            self._mapping.write32(4 * word, value)

    def mapped(address: int, size: int, fmt: str = "B") -> Any:
        mapping = mappings.get(address)
        if mapping is not None and mapping.view is None:
            return Doorbell(mapping)
        return original(address, size, fmt)

    ops_nv.FileIOInterface = NodeFile
    ops_nv.MMIOInterface = mapped
