"""What tinygrad opens of KGSL, forwarded to a virtual node of this process.

tinygrad reaches the device file by one class, FileIOInterface (0.14.0, runtime/support/hcq.py),
which its generated calls know. `install` puts a subclass in its place in ops_qcom; the driver
itself is as installed. Mapped objects are shared pages at the address that the node gives them,
which is their GPU address too (KGSL_MEMFLAGS_USE_CPU_MAP).
"""

from __future__ import annotations

import ctypes
from typing import Any

from ugpu.hcq.transport.node import NodeMapping
from ugpu.virtual.adreno.node import VirtualNode


def install(node: VirtualNode, ops_qcom: Any) -> None:
    """Let tinygrad's module `ops_qcom` reach `node`, which stays the caller's."""
    original: Any = ops_qcom.FileIOInterface
    mappings: dict[int, NodeMapping] = {}

    class NodeFile(original):
        """An open device file; takes the place of FileIOInterface."""

        def __init__(self, path: str, flags: int) -> None:
            del flags
            self.fd = node.open(path)

        def __del__(self) -> None:
            if hasattr(self, "fd"):
                node.release(self.fd)

        def ioctl(self, request: int, argument: Any) -> int:
            size, where = ctypes.sizeof(argument), ctypes.addressof(argument)
            block = (ctypes.c_ubyte * size).from_address(where)
            node.ioctl(self.fd, request, memoryview(block).cast("B"))
            return 0

        def mmap(self, start: int, size: int, prot: int, flags: int, offset: int) -> int:
            del start, prot, flags
            mapping = node.map(self.fd, size, offset)
            mappings[mapping.address] = mapping
            return mapping.address

        @staticmethod
        def munmap(address: int, size: int) -> int:
            del size
            mappings.pop(address).close()
            return 0

    ops_qcom.FileIOInterface = NodeFile
