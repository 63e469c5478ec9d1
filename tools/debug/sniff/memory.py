"""Data that a program wrote to mapped memory before a doorbell: rings, methods, descriptors.

A page has the content of its last recorded change; a page without one is zeros. Memory that methods
write is known too, whether or not the program mapped it. A ring holds GPU addresses. The calls that
created and mapped the memory give their place in the program. Without such a call the place is the
same address, as in CUDA. Sources: open-gpu-doc clc56f.h (entries, method headers), the tables of
methods and descriptors in nv.abi.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ugpu.hcq.errors import UgpuError
from ugpu.nv import abi
from ugpu.nv.packets.chains import Successor
from ugpu.tools.debug.sniff.decode import Decoded, Values
from ugpu.tools.debug.sniff.recording import Call

PAGE = 4096
MOST_LINES = 400  # per doorbell
MOST_BANK = 4096
_BANK_ADDRESS = (
    ("CONSTANT_BUFFER_ADDR_LOWER", 0), ("CONSTANT_BUFFER_ADDR_UPPER", 32),
    ("CONSTANT_BUFFER_ADDR_LOWER_SHIFTED6", 6), ("CONSTANT_BUFFER_ADDR_UPPER_SHIFTED6", 38),
)  # fmt: skip
_ZEROS = bytes(PAGE)
_ENTRY = struct.Struct("<II")
_LOAD_QMD, _SEND_PCAS = "LOAD_INLINE_QMD_DATA", "SEND_PCAS_A"
_LOAD, _LAUNCH = "LOAD_INLINE_DATA", "LAUNCH_DMA"
#: destination of inline data; only transfers of one line are followed
_INLINE = ("OFFSET_OUT_UPPER", "OFFSET_OUT", "LINE_LENGTH_IN", "LINE_COUNT")
_ROW = 8  # words of inline data on a line
#: launch descriptors: version by the compute class's upper byte (open-gpu-doc classes/compute)
QMD_VERSIONS = {0xC5: "2.3", 0xC6: "3.0", 0xC7: "3.0", 0xC9: "3.0", 0xCB: "4.0", 0xCD: "5.0",
                0xCE: "5.0"}  # fmt: skip


@dataclass(frozen=True)
class Ring:
    """A channel's ring as the program requested it."""

    address: int
    entries: int


@dataclass(frozen=True)
class Launch:
    """A launch descriptor for which a doorbell was rung. bank: constant bank 0, if recorded."""

    table: abi.Descriptor
    raw: bytes
    bank: bytes | None


@dataclass(frozen=True)
class Range:
    """GPU addresses that map an allocation, from its `offset` on."""

    base: int
    length: int
    memory: int
    offset: int


class Image:
    """The program's mapped memory, built up call by call with `take`."""

    def __init__(self, decoded: Sequence[Decoded]) -> None:
        self._calls = {id(request.call): request for request in decoded}
        self._pages: dict[int, bytes] = {}
        self._spans: list[tuple[int, int]] = []  # mapped ranges: address, length
        self._files: dict[int, int] = {}  # handle of the memory, by the file that will map it
        self._mapped: dict[int, int] = {}  # address of mapped memory in the program, by handle
        self._ranges: list[Range] = []
        self._rings: list[Ring] = []
        self._old: dict[int, bytes] = {}  # last content of rings, by address
        self._classes: dict[int, int] = {}  # by subchannel
        self._rung = False
        self._inline: dict[tuple[int, str], int] = {}  # methods of _INLINE, by subchannel and name
        self._targets: dict[int, tuple[int, int]] = {}  # expected inline data: address, bytes
        self.launches: list[Launch] = []

    def take(self, call: Call) -> Iterator[str]:
        """Process the next call. Yield lines about the preceding doorbell once all its pages are
        there."""
        if call.kind == "memory":
            if call.after is not None:
                self._pages[call.address] = call.after
            return
        if self._rung:
            self._rung = False
            yield from self.rung()
        if call.kind == "doorbell":
            self._rung = True
        elif call.kind == "mmap" and not call.errno:
            self._spans.append((call.result, call.length))
            if call.fd in self._files:
                self._mapped[self._files.pop(call.fd)] = call.result
        elif call.kind == "ioctl":
            self._learn(self._calls[id(call)])

    def end(self) -> Iterator[str]:
        """Yield lines about a doorbell that was the last call."""
        if self._rung:
            self._rung = False
            yield from self.rung()

    def _learn(self, request: Decoded) -> None:
        own = request.own.after if request.own is not None else None
        if own is None:
            return
        if request.title == "RM_MAP_MEMORY" and "params.hMemory" in own:
            self._files[_number(own, "fd")] = _number(own, "params.hMemory")
        elif request.title == "UVM_MAP_EXTERNAL_ALLOCATION":
            self._ranges.append(
                Range(_number(own, "base"), _number(own, "length"), _number(own, "hMemory"),
                      _number(own, "offset"))
            )  # fmt: skip
        elif request.title == "RM_MAP_MEMORY_DMA":
            self._ranges.append(
                Range(_number(own, "dmaOffset"), _number(own, "length"), _number(own, "hMemory"),
                      _number(own, "offset"))
            )  # fmt: skip
        for block in request.blocks:
            if block.struct == "NV_CHANNEL_ALLOC_PARAMS" and block.before is not None:
                ring = Ring(
                    _number(block.before, "gpFifoOffset"), _number(block.before, "gpFifoEntries")
                )
                self._rings.append(ring)

    def here(self, address: int) -> int:
        """Return the address in the program that belongs to a GPU address."""
        for span in reversed(self._ranges):
            if span.base <= address < span.base + span.length and span.memory in self._mapped:
                return self._mapped[span.memory] + span.offset + address - span.base
        return address

    def read(self, address: int, size: int) -> bytes | None:
        """Return memory at a GPU address; None if any of it was not recorded."""
        at = self.here(address)
        content = bytearray()
        while len(content) < size:
            page = self._pages.get(at & -PAGE)
            if page is None:
                if not any(start <= at < start + length for start, length in self._spans):
                    return None
                page = _ZEROS
            start = at % PAGE
            part = page[start : start + size - len(content)]
            content += part
            at += len(part)
        return bytes(content)

    def rung(self) -> list[str]:
        """Return the new entries of the rings, decoded."""
        lines: list[str] = []
        for ring in self._rings:
            raw = self.read(ring.address, 8 * ring.entries)
            if raw is None:
                continue
            old = self._old.get(ring.address, bytes(len(raw)))
            self._old[ring.address] = raw
            for at in range(0, len(raw), 8):
                if raw[at : at + 8] != old[at : at + 8]:
                    lines += self._entry(at // 8, *_ENTRY.unpack_from(raw, at))
        if not lines:
            lines = ["no ring that was seen has a new entry"]
        if len(lines) > MOST_LINES:
            lines = [*lines[:MOST_LINES], f"... and {len(lines) - MOST_LINES} lines more"]
        return lines

    def _entry(self, number: int, low: int, high: int) -> Iterator[str]:
        length, address = high >> 10 & 0x1F_FFFF, (high & 0xFF) << 32 | low & ~3
        if not length:
            yield f"entry {number}: control {high & 0xFF:#x}, operand {low:#x}"
            return
        yield f"entry {number}: {length} words at {address:#x}"
        raw = self.read(address, 4 * length)
        if raw is None:
            yield "  not in memory that was recorded"
            return
        yield from self._methods(struct.unpack(f"<{length}I", raw))

    def _methods(self, words: Sequence[int]) -> Iterator[str]:
        at, inline = 0, bytearray()
        while at < len(words):
            header = words[at]
            at += 1
            operation, count = header >> 29, header >> 16 & 0x1FFF
            subchannel, address = header >> 13 & 7, (header & 0xFFF) << 2
            if operation == 4:
                yield self._one(subchannel, address, count)
                continue
            if operation not in (1, 3, 5):
                if header:
                    yield f"  header {header:#010x}"
                continue
            loaded: list[int] = []
            for position in range(min(count, len(words) - at)):
                value = words[at + position]
                name = self._name(subchannel, address)
                if name.startswith(_LOAD_QMD):
                    inline += struct.pack("<I", value)
                elif name == _LOAD:
                    loaded.append(value)
                else:
                    self._aim(subchannel, name, value)
                    yield self._one(subchannel, address, value)
                    yield from self._descriptor(subchannel, address, value)
                if operation == 1 or (operation == 5 and position == 0):
                    address += 4
            at += count
            yield from self._load(subchannel, loaded)
        if inline:
            yield from self._qmd(bytes(inline), "written by methods")

    def _aim(self, subchannel: int, name: str, value: int) -> None:
        """Track the destination of inline data."""
        if name in _INLINE:
            self._inline[subchannel, name] = value
        elif name == _LAUNCH:
            upper, lower, length, lines = (self._inline.get((subchannel, n), 0) for n in _INLINE)
            self._targets[subchannel] = upper << 32 | lower, length if lines == 1 else 0

    def _load(self, subchannel: int, words: Sequence[int]) -> Iterator[str]:
        """Write inline data to the image; the rest of an unmapped page is zeros."""
        address, left = self._targets.get(subchannel, (0, 0))
        raw = struct.pack(f"<{len(words)}I", *words)[:left]
        for at in range(0, len(words), _ROW):
            row = " ".join(f"{word:#x}" for word in words[at : at + _ROW])
            yield f"  {subchannel}: {_LOAD} {row}"
        self._targets[subchannel] = address + len(raw), left - len(raw)
        while raw:
            here = self.here(address)
            start = here % PAGE
            part, page = raw[: PAGE - start], self._pages.get(here & -PAGE, _ZEROS)
            self._pages[here & -PAGE] = page[:start] + part + page[start + len(part) :]
            raw, address = raw[len(part) :], address + len(part)

    def _name(self, subchannel: int, address: int) -> str:
        if address < 0x100:
            return "SET_OBJECT" if not address else f"host {address:#x}"
        number = self._classes.get(subchannel)
        try:
            method = abi.methods(number).find(address) if number is not None else None
        except UgpuError:
            method = None
        if method is None:
            return f"{address:#06x}"
        return f"{method[0].name}({method[1]})" if method[0].stride else method[0].name

    def _one(self, subchannel: int, address: int, value: int) -> str:
        if not address:
            self._classes[subchannel] = value & 0xFFFF
        return f"  {subchannel}: {self._name(subchannel, address)} = {value:#x}"

    def _descriptor(self, subchannel: int, address: int, value: int) -> Iterator[str]:
        if self._name(subchannel, address) != _SEND_PCAS:
            return
        table, where = self._table(), value << 8
        raw = self.read(where, table.size) if table is not None else None
        if raw is None:
            yield "  its descriptor is not in memory that was recorded"
            return
        successor, shown = Successor.of(table) if table is not None else None, set[int]()
        while raw is not None:
            yield from self._qmd(raw, f"at {where:#x}")
            shown.add(where)
            where = successor.named(raw) if successor is not None else 0
            if not where or where in shown:
                return
            raw = self.read(where, len(raw))
            yield "  which starts one more:"
            if raw is None:
                yield f"  descriptor at {where:#x}, not recorded"

    def _table(self) -> abi.Descriptor | None:
        for number in self._classes.values():
            version = QMD_VERSIONS.get(number >> 8)
            if number & 0xFF == 0xC0 and version is not None:
                return abi.qmd(version)
        return None

    def _qmd(self, raw: bytes, where: str) -> Iterator[str]:
        table = self._table()
        if table is None or len(raw) < table.size:
            yield f"  descriptor {where}: {raw.hex()}"
            return
        yield f"  descriptor {where}:"
        for name, value in table.decode(raw).items():
            if isinstance(value, list):
                told = [f"[{i}] {element:#x}" for i, element in enumerate(value) if element]
                if told:
                    yield f"    {name} {' '.join(told)}"
            elif value:
                yield f"    {name} = {value:#x}"
        rest = table.undefined(raw)
        if rest:
            yield f"    bits that the header does not name: {rest:#x}"
        yield from self._banks(table, raw)

    def _banks(self, table: abi.Descriptor, raw: bytes) -> Iterator[str]:
        """Yield the content of constant banks, row by row. Rows of zeros are omitted."""
        first: bytes | None = None
        for bank in range(table.field("CONSTANT_BUFFER_VALID").count):
            if not table.get(raw, "CONSTANT_BUFFER_VALID", bank):
                continue
            address = size = 0
            for name, shift in _BANK_ADDRESS:
                if name in table.fields:
                    address |= table.get(raw, name, bank) << shift
            if "CONSTANT_BUFFER_SIZE_SHIFTED4" in table.fields:
                size = table.get(raw, "CONSTANT_BUFFER_SIZE_SHIFTED4", bank) << 4
            content = self.read(address, min(size, MOST_BANK))
            first = content if bank == 0 else first
            if content is None:
                yield f"    bank {bank}: {size} bytes at {address:#x}, not recorded"
                continue
            yield f"    bank {bank}: {size} bytes at {address:#x}"
            for at in range(0, len(content), 16):
                row = content[at : at + 16]
                if any(row):
                    yield f"      {at:#06x}  {row.hex(' ', 4)}"
        self.launches.append(Launch(table, raw, first))


def _number(values: Values | Mapping[str, object], name: str) -> int:
    value = values.get(name, 0)
    return value if isinstance(value, int) else 0
