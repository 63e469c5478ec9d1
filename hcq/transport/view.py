"""Memory accessed by messages, with the interface of a memoryview.

A driver that places a ring or a counter in such memory uses slices alone, as with a memoryview:
`bytes(view[a:b])` reads, `view[a:b] = data` writes, each in one access.
"""

from __future__ import annotations

from collections.abc import Callable

from ugpu.hcq.errors import BadArgument, Closed

Read = Callable[[int, int], bytes]
Write = Callable[[int, bytes | bytearray | memoryview], None]


class RemoteView:
    """`size` bytes from `start` on. read(offset, size) and write(offset, data) do the accesses and
    handle the memory's own alignment."""

    __slots__ = ("_closed", "_read", "_size", "_start", "_write")

    def __init__(self, read: Read, write: Write, size: int, start: int = 0) -> None:
        self._read, self._write = read, write
        self._start, self._size = start, size
        self._closed = False

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> RemoteView:
        start, stop = self._bounds(part)
        return RemoteView(self._read, self._write, stop - start, self._start + start)

    def __setitem__(self, part: slice, data: bytes | bytearray | memoryview | RemoteView) -> None:
        start, stop = self._bounds(part)
        source = bytes(data) if isinstance(data, RemoteView) else data
        size = memoryview(source).nbytes
        if size != stop - start:
            raise BadArgument(f"expected {stop - start} bytes, got {size}")
        if size:
            self._write(self._start + start, memoryview(source).cast("B"))

    def __bytes__(self) -> bytes:
        if self._closed:
            raise Closed("this view of memory was released")
        return self._read(self._start, self._size) if self._size else b""

    def tobytes(self) -> bytes:
        """Return the content, read in one access."""
        return bytes(self)

    def release(self) -> None:
        """End this view; its slices stay usable."""
        self._closed = True

    def _bounds(self, part: slice) -> tuple[int, int]:
        if self._closed:
            raise Closed("this view of memory was released")
        if not isinstance(part, slice):
            raise BadArgument("memory behind a bridge must be accessed by slices", index=part)
        start, stop, step = part.indices(self._size)
        if step != 1:
            raise BadArgument("slice step must be 1", step=step)
        return start, max(start, stop)

    def __repr__(self) -> str:
        return f"<RemoteView {self._size} bytes>"


#: memory that a host accesses, by loads and stores or by messages
HostView = memoryview | RemoteView


def widened(read: Read, write: Write, align: int = 4) -> tuple[Read, Write]:
    """Return accesses of any offset and size, for memory that only accepts whole units of `align`
    bytes: a write of part of a unit reads the unit first."""

    def read_any(offset: int, size: int) -> bytes:
        start = offset - offset % align
        end = -(-(offset + size) // align) * align
        return read(start, end - start)[offset - start : offset - start + size]

    def write_any(offset: int, data: bytes | bytearray | memoryview) -> None:
        start = offset - offset % align
        size = memoryview(data).nbytes
        end = -(-(offset + size) // align) * align
        if (start, end) == (offset, offset + size):
            write(offset, data)
            return
        whole = bytearray(read(start, end - start))
        whole[offset - start : offset - start + size] = data
        write(start, whole)

    return read_any, write_any
