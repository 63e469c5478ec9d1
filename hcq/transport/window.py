"""Windows: a BAR that is mapped into this process, and one accessed by file reads and writes."""

from __future__ import annotations

import mmap
import struct
import threading
from typing import NoReturn

from ugpu.hcq.errors import BadArgument, Closed, DeviceLost
from ugpu.hcq.transport.system import System

_WORD, _LONG = struct.Struct("<I"), struct.Struct("<Q")


def _refuse(index: int, size: int, offset: int, width: int) -> NoReturn:
    raise BadArgument(
        f"BAR {index}: the access must be aligned to its width and inside the window",
        offset=offset,
        width=width,
        size=size,
    )


def _check_value(value: int, bits: int) -> None:
    if not 0 <= value < 1 << bits:
        raise BadArgument(f"the value must fit in {bits} bits", value=value)


class MappedWindow:
    """A BAR in our address space: each access is one load or store of its width.

    `close` unmaps; any thread may call it, and accesses after it raise Closed. Reading a function
    that has left the bus returns all ones.
    """

    __slots__ = ("_bytes", "_longs", "_map", "_words", "index", "size")

    def __init__(self, index: int, mapping: mmap.mmap, size: int) -> None:
        self.index = index
        self.size = size
        self._map = mapping
        # A memoryview with a cast format copies exactly one item: one aligned access of its width.
        self._bytes = memoryview(mapping)[:size]
        self._words = self._bytes[: size & ~3].cast("I")
        self._longs = self._bytes[: size & ~7].cast("Q")

    def read32(self, offset: int) -> int:
        """Read one register."""
        if offset & 3 or offset < 0:
            _refuse(self.index, self.size, offset, 4)
        try:
            return self._words[offset >> 2]
        except (IndexError, ValueError):
            self._explain(offset, 4)

    def write32(self, offset: int, value: int) -> None:
        """Write one register."""
        if offset & 3 or offset < 0:
            _refuse(self.index, self.size, offset, 4)
        try:
            self._words[offset >> 2] = value
        except (IndexError, ValueError):
            _check_value(value, 32)
            self._explain(offset, 4)

    def read64(self, offset: int) -> int:
        """Read one 64-bit register."""
        if offset & 7 or offset < 0:
            _refuse(self.index, self.size, offset, 8)
        try:
            return self._longs[offset >> 3]
        except (IndexError, ValueError):
            self._explain(offset, 8)

    def write64(self, offset: int, value: int) -> None:
        """Write one 64-bit register."""
        if offset & 7 or offset < 0:
            _refuse(self.index, self.size, offset, 8)
        try:
            self._longs[offset >> 3] = value
        except (IndexError, ValueError):
            _check_value(value, 64)
            self._explain(offset, 8)

    def read(self, offset: int, size: int) -> bytes:
        """Read a block of memory."""
        self._check_block(offset, size)
        try:
            return bytes(self._bytes[offset : offset + size])
        except ValueError:
            self._explain(offset, size)

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write a block of memory."""
        source = memoryview(data).cast("B") if data else memoryview(b"")
        self._check_block(offset, len(source))
        try:
            self._bytes[offset : offset + len(source)] = source
        except ValueError:
            self._explain(offset, len(source))

    def close(self) -> None:
        """Unmap; idempotent."""
        for view in (self._longs, self._words, self._bytes):
            view.release()
        self._map.close()

    def _check_block(self, offset: int, size: int) -> None:
        if offset < 0 or size < 0 or (offset | size) & 3 or offset + size > self.size:
            _refuse(self.index, self.size, offset, size)

    def _explain(self, offset: int, width: int) -> NoReturn:
        if self._map.closed:
            raise Closed(f"the window of BAR {self.index} was closed")
        _refuse(self.index, self.size, offset, width)

    def __repr__(self) -> str:
        return f"<MappedWindow BAR {self.index}, {self.size} bytes>"


class FileWindow:
    """A BAR accessed by pread and pwrite on a descriptor, for a BAR that may not be mapped.

    Slower by a system call per access. The kernel may split a 64-bit access into two halves (Linux
    drivers/vfio/pci/vfio_pci_rdwr.c before 6.11). The caller owns the descriptor, which is not used
    any more once `close` has returned.
    """

    __slots__ = ("_base", "_closed", "_descriptor", "_lock", "_system", "index", "size")

    def __init__(self, system: System, index: int, descriptor: int, base: int, size: int) -> None:
        self.index = index
        self.size = size
        self._system = system
        self._descriptor = descriptor
        self._base = base
        self._closed = False
        self._lock = threading.Lock()

    def read32(self, offset: int) -> int:
        """Read one register."""
        self._check(offset, 4, 4)
        value: int = _WORD.unpack(self._read(offset, 4))[0]
        return value

    def write32(self, offset: int, value: int) -> None:
        """Write one register."""
        self._check(offset, 4, 4)
        _check_value(value, 32)
        self._write(offset, _WORD.pack(value))

    def read64(self, offset: int) -> int:
        """Read one 64-bit register."""
        self._check(offset, 8, 8)
        value: int = _LONG.unpack(self._read(offset, 8))[0]
        return value

    def write64(self, offset: int, value: int) -> None:
        """Write one 64-bit register."""
        self._check(offset, 8, 8)
        _check_value(value, 64)
        self._write(offset, _LONG.pack(value))

    def read(self, offset: int, size: int) -> bytes:
        """Read a block of memory."""
        self._check(offset, size, 4)
        return self._read(offset, size)

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write a block of memory."""
        source = memoryview(data).cast("B") if data else memoryview(b"")
        self._check(offset, len(source), 4)
        self._write(offset, source)

    def close(self) -> None:
        """Reject further accesses, and wait for one that is in progress; idempotent."""
        self._closed = True
        # TIMEOUT: in a forked child it may never end, as its thread does not exist there.
        if self._lock.acquire(timeout=1.0):
            self._lock.release()

    def _check(self, offset: int, size: int, alignment: int) -> None:
        misfit = (offset | size) & (alignment - 1)
        if offset < 0 or size < 0 or misfit or offset + size > self.size:
            self._check_open()
            _refuse(self.index, self.size, offset, size)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the window of BAR {self.index} was closed")

    def _read(self, offset: int, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            place = self._base + offset + len(parts)
            with self._lock:
                self._check_open()
                try:
                    part = self._system.pread(self._descriptor, size - len(parts), place)
                except OSError as error:
                    raise self._lost(offset) from error
            if not part:
                raise self._lost(offset)
            parts += part
        return bytes(parts)

    def _write(self, offset: int, data: bytes | memoryview) -> None:
        done = 0
        while done < len(data):
            place = self._base + offset + done
            with self._lock:
                self._check_open()
                try:
                    count = self._system.pwrite(self._descriptor, data[done:], place)
                except OSError as error:
                    raise self._lost(offset) from error
            if count <= 0:
                raise self._lost(offset)
            done += count

    def _lost(self, offset: int) -> DeviceLost:
        return DeviceLost(f"BAR {self.index} no longer answers", offset=offset)

    def __repr__(self) -> str:
        return f"<FileWindow BAR {self.index}, {self.size} bytes>"
