"""Accesses to parts of dwords of a BAR, made of the accesses that a window has.

A read takes the dwords around it. A write changes bytes of a dword by reading the rest of it first:
a board writes them by byte enables, without the read, so that registers whose reads have effects
differ (UNSURE: which of a device's registers take bytes at all). Clients use both for memory, such
as the video BIOS, and for VGA registers. A window that is memory may take any bytes itself, by
`read_bytes(offset, count)` and `write_bytes(offset, data)`.
"""

from __future__ import annotations

from collections.abc import Callable

from ugpu.hcq.transport.base import Window

_DWORD = 4


def covered(window: Window, offset: int, count: int) -> bytes:
    """Read bytes that lie in the window; all dwords of a block around them are read once."""
    whole_bytes: Callable[[int, int], bytes] | None = getattr(window, "read_bytes", None)
    if whole_bytes is not None:
        return whole_bytes(offset, count)
    start, end = _around(offset, count)
    if end - start == _DWORD:
        data = window.read32(start).to_bytes(_DWORD, "little")
    else:
        data = window.read(start, end - start)
    return data[offset - start : offset - start + count]


def write_covered(window: Window, offset: int, data: bytes | memoryview) -> None:
    """Write bytes that lie in the window; a partial dword at either end is read first."""
    whole_bytes: Callable[[int, bytes], None] | None = getattr(window, "write_bytes", None)
    if whole_bytes is not None:
        whole_bytes(offset, bytes(data))
        return
    start, end = _around(offset, len(data))
    if (start, end) == (offset, offset + len(data)):
        window.write(offset, data)
        return
    whole = bytearray(end - start)
    for edge in {start, end - _DWORD}:
        if edge < offset or edge + _DWORD > offset + len(data):
            at = edge - start
            whole[at : at + _DWORD] = window.read32(edge).to_bytes(_DWORD, "little")
    whole[offset - start : offset - start + len(data)] = data
    if len(whole) == _DWORD:
        window.write32(start, int.from_bytes(whole, "little"))
    else:
        window.write(start, whole)


def _around(offset: int, count: int) -> tuple[int, int]:
    return offset & -_DWORD, -(-(offset + count) // _DWORD) * _DWORD
