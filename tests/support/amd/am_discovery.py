"""Builds discovery binaries for the parser's tests, from the layout in Linux 6.12 discovery.h."""

from __future__ import annotations

import struct
from collections.abc import Sequence

Block = tuple[int, int, tuple[int, int, int], tuple[int, ...]]  # hw id, instance, version, bases

GC = (6, 4, 0, 16, 6, 1024, 32, 32, 1792, 1024, 1, 32, 16, 32, 64, 1, 2, 4, 6)


def byte_sum(data: bytes) -> int:
    return sum(data) & 0xFFFF


def ip_table(
    dies: Sequence[Sequence[Block]], start: int, *, version: int = 3, wide: bool = False
) -> bytes:
    """The IP table as it lies at `start` in the binary; its size field covers dies and blocks."""
    head = 14 + 16 * 4 + (2 if version == 4 else 0)
    body = b""
    infos = []
    for number, blocks in enumerate(dies):
        infos.append((number, start + head + len(body)))
        body += struct.pack("<HH", number, len(blocks))
        for hardware_id, instance, (major, minor, revision), bases in blocks:
            body += struct.pack(
                "<HBBBBBB", hardware_id, instance, len(bases), major, minor, revision, 0
            )
            body += b"".join(struct.pack("<Q" if wide else "<I", base) for base in bases)
    table = struct.pack("<IHHIH", 0x53445049, version, head + len(body), 0, len(dies))
    table += b"".join(struct.pack("<HH", *info) for info in infos).ljust(64, b"\0")
    if version == 4:
        table += struct.pack("<BB", int(wide), 0)
    return table + body


def gc_table(fields: Sequence[int] = GC, *, major: int = 1, minor: int = 2) -> bytes:
    body = struct.pack(f"<{len(fields)}I", *fields)
    return struct.pack("<IHHI", 0x4347, major, minor, 12 + len(body)) + body


def harvest_table(gone: Sequence[tuple[int, int]]) -> bytes:
    rows = b"".join(struct.pack("<HBB", hardware_id, number, 0) for hardware_id, number in gone)
    return (struct.pack("<II", 0x56524148, 0) + rows).ljust(8 + 32 * 4, b"\0")


def binary(
    dies: Sequence[Sequence[Block]],
    *,
    gc: bytes | None = None,
    harvest: bytes | None = None,
    version: int = 3,
    wide: bool = False,
    major: int = 1,
    listed: int = 6,
) -> bytes:
    """A whole binary with right checksums. listed: tables in the list; major 2 states that."""
    count = struct.pack("<HH", listed, 0) if major == 2 else b""
    start = 12 + len(count) + listed * 8
    tables = [ip_table(dies, start, version=version, wide=wide), gc or b"", harvest or b""]
    entries, body = b"", b""
    for table in tables:
        where = start + len(body) if table else 0
        entries += struct.pack("<HHHH", where, byte_sum(table), len(table), 0)
        body += table
    entries = count + entries[: listed * 8].ljust(listed * 8, b"\0")
    size = start + len(body)
    tail = struct.pack("<H", size) + entries + body
    return struct.pack("<IHHH", 0x28211407, major, 0, byte_sum(tail)) + tail
