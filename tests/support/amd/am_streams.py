"""What the queues of a virtual AMD GPU fetch, as text: one packet a line, fields by name.

Layouts by hand from Linux 6.12 nvd.h and sdma_v6_0_0_pkt_open.h; of the driver's code nothing is
used but register tables.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.support.corpus.workloads import Places
from ugpu.am.chips.navi31.facts import FACTS
from ugpu.am.regs import load
from ugpu.hcq.registers.fields import Register

SH_START = 0x2C00
RING_WORDS = 0x4000  # of each of our queues
PAGE = 4096
GC_SEGMENT0 = 0x1260
# A word: a name, fields of a word as (name, lsb, width), "lo:NAME" of an address with its other
# half behind it, "v64:NAME" of a value.
Word = str | tuple[tuple[str, int, int], ...]
PM4: dict[int, tuple[str, tuple[Word, ...]]] = {
    0x10: ("NOP", ()),
    0x15: ("DISPATCH_DIRECT", ("X", "Y", "Z", "INITIATOR")),
    0x3C: ("WAIT_REG_MEM", (
        (("FUNCTION", 0, 3), ("MEM_SPACE", 4, 2), ("ENGINE", 8, 2)), "lo:ADDRESS", "REFERENCE",
        "MASK", "POLL_INTERVAL",
    )),
    0x3F: ("INDIRECT_BUFFER", (
        "lo:ADDRESS", (("SIZE", 0, 20), ("VALID", 23, 1), ("VMID", 24, 4), ("INHERIT_VMID", 30, 1)),
    )),
    0x46: ("EVENT_WRITE", ((("EVENT_TYPE", 0, 6), ("EVENT_INDEX", 8, 4)),)),
    0x49: ("RELEASE_MEM", (
        (("EVENT_TYPE", 0, 6), ("EVENT_INDEX", 8, 4), ("GCR_CNTL", 12, 13), ("POLICY", 25, 2)),
        (("DST_SEL", 16, 2), ("INT_SEL", 24, 3), ("DATA_SEL", 29, 3)),
        "lo:ADDRESS", "v64:DATA", "CONTEXT",
    )),
    0x50: ("DMA_DATA", (
        (("DST_SEL", 20, 2), ("SRC_SEL", 29, 2), ("CP_SYNC", 31, 1)),
        "lo:SOURCE", "lo:DESTINATION", (("BYTES", 0, 26),),
    )),
    0x58: ("ACQUIRE_MEM", (
        "COHER_CNTL", "SIZE", "SIZE_HI", "BASE", "BASE_HI", "POLL_INTERVAL", "GCR_CNTL",
    )),
}  # fmt: skip
SDMA: dict[tuple[int, int], tuple[str, tuple[Word, ...]]] = {
    (1, 0): ("COPY_LINEAR", ((("BYTES_LESS_1", 0, 30),), "PARAMETER", "lo:SOURCE",
                             "lo:DESTINATION")),
    (4, 0): ("INDIRECT", ("lo:ADDRESS", "SIZE", "lo:CSA")),
    (5, 0): ("FENCE", ("lo:ADDRESS", "DATA")),
    (6, 0): ("TRAP", ("CONTEXT",)),
    (8, 0): ("POLL_REGMEM", ("lo:ADDRESS", "REFERENCE", "MASK",
                             (("INTERVAL", 0, 16), ("RETRY_COUNT", 16, 12)))),
    (11, 0): ("CONSTANT_FILL", ("lo:ADDRESS", "DATA", (("BYTES_LESS_1", 0, 30),))),
    (13, 2): ("TIMESTAMP_GET_GLOBAL", ("lo:ADDRESS",)),
}  # fmt: skip
FILL, DMA_DATA, FROM_DATA = (11, 0), 0x50, 2
CPV = 1 << 19  # of COPY_LINEAR: SDMA 7.0 sets it, and has an eighth word (sdma_v7_0.c)


def _sh_registers() -> dict[int, tuple[str, Register]]:
    table = load(FACTS.table("GC"))
    found = {}
    for name in table:
        if name.startswith("COMPUTE_") and table[name].segment == 0:
            found.setdefault(table[name].offset + GC_SEGMENT0 - SH_START, (name, table[name]))
    return found


class Decoder:
    """Text of packets. load: reads device memory, for blocks that packets point to."""

    def __init__(self, places: Places, load: Callable[[int, int], bytes]) -> None:
        self.places = places
        self.load = load
        self.registers = _sh_registers()

    def pm4(self, words: Sequence[int]) -> Iterator[str]:
        """PM4 packets. A last one that is cut off is an error of the caller."""
        at = 0
        while at < len(words):
            head = words[at]
            count = (head >> 16 & 0x3FFF) + 1
            body = words[at + 1 : at + 1 + count]
            assert head >> 30 == 3 and len(body) == count, f"{head:#x}"
            at += 1 + count
            opcode = head >> 8 & 0xFF
            if opcode == 0x76:
                yield from self._set_registers(body)
                continue
            name, layout = PM4[opcode]
            if opcode == DMA_DATA and body[0] >> 29 & 3 == FROM_DATA:
                layout = (layout[0], "DATA", "DATA_HI", *layout[2:])
            if opcode == 0x10:
                yield f"{name} of {count + 1} words"
            else:
                yield f"{name} {self._fields(layout, body)}"

    def sdma(self, words: Sequence[int]) -> Iterator[str]:
        """SDMA packets."""
        at = 0
        while at < len(words):
            head = words[at]
            if head & 0xFFFF == 0:
                at += 1
                yield "NOP"
                continue
            name, layout = SDMA[head & 0xFF, head >> 8 & 0xFF]
            if name == "COPY_LINEAR" and head & CPV:
                layout = (*layout, "COMPRESSION")
            size = sum(2 if isinstance(w, str) and w[:3] in ("lo:", "v64") else 1 for w in layout)
            body = words[at + 1 : at + 1 + size]
            at += 1 + size
            yield f"{name} HEADER={head >> 16:#x} {self._fields(layout, body)}"

    def _fields(self, layout: Sequence[Word], body: Sequence[int]) -> str:
        found, at = [], 0
        for word in layout:
            value = body[at]
            at += 1
            if isinstance(word, tuple):
                known = 0
                for name, lsb, width in word:
                    part = value >> lsb & (1 << width) - 1
                    known |= part << lsb
                    found.append(f"{name}={part:#x}")
                if value & ~known:
                    found.append(f"rest={value & ~known:#x}")
            elif ":" in word:
                kind, _, name = word.partition(":")
                both = value | body[at] << 32
                at += 1
                found.append(f"{name}={self.places.shown(both) if kind == 'lo' else f'{both:#x}'}")
            else:
                found.append(f"{word}={value:#x}")
        assert at == len(body), (layout, body)
        return " ".join(found)

    def _set_registers(self, body: Sequence[int]) -> Iterator[str]:
        first, values = body[0], body[1:]
        found, blocks = [], []
        at = 0
        while at < len(values):
            name, register = self.registers[first + at]
            value = values[at]
            at += 1
            if name in ("COMPUTE_PGM_LO", "COMPUTE_DISPATCH_SCRATCH_BASE_LO"):
                found.append(f"{name}={self.places.shown((value | values[at] << 32) << 8)}>>8")
                at += 1
            elif name.startswith("COMPUTE_USER_DATA") and at < len(values):
                address = value | values[at] << 32
                at += 1
                found.append(f"{name}={self.places.shown(address)}")
                blocks.append(address)
            else:
                parts = {n: f.extract(value) for n, f in register.fields.items()}
                known = [f"{n}={v:#x}" for n, v in parts.items() if v and len(parts) > 1]
                found.append(f"{name}={value:#x}{f' ({chr(32).join(known)})' if known else ''}")
        yield f"SET_SH_REG {' '.join(found)}"
        for address in blocks:
            yield from self._block(address)

    def _block(self, address: int, size: int = 24) -> Iterator[str]:
        """The first words of what arguments point to: here, two addresses and two words."""
        first, second, *rest = struct.unpack("<QQ2I", self.load(address, size))
        shown = [*map(self.places.shown, (first, second)), *(f"{value:#x}" for value in rest)]
        yield f"    at {self.places.shown(address)}: {', '.join(shown)}"


class Streams:
    """Notes what the queues of a chip fetch: by queue, the ring's packets and those of images.

    To be made once the device is open; `take` gives what was noted since the last call.
    """

    def __init__(self, chip: Any, places: Places) -> None:  # Any: methods of it are replaced
        self.chip = chip
        self.places = places
        self.decoder = Decoder(places, self._load)
        self.vmid = 0
        self.rings: dict[str, list[int]] = {}
        self.images: dict[str, list[str]] = {}
        for slot in (slot for pipe in chip.gfx.mec.slots for slot in pipe):
            if slot.active is not None:
                self._watch(slot.active, f"compute {slot.pipe}.{slot.queue}", self.decoder.pm4)
        for engine in chip.gfx.sdma:
            self._watch(engine.queue, f"SDMA{engine.instance}", self.decoder.sdma)

    def _load(self, address: int, size: int) -> bytes:
        with self.chip.lock:
            data, fault = self.chip.gc.read(self.vmid, address, size, 0)
        assert fault is None
        return bytes(data)

    def _watch(self, queue: Any, name: str, text: Callable[..., Iterator[str]]) -> None:
        fetch = queue.fetch
        setup = queue.setup

        def noted(vmid: int, address: int, dwords: int) -> tuple[int, ...]:
            words: tuple[int, ...] = fetch(vmid, address, dwords)
            self.vmid = vmid
            if setup.base <= address < setup.base + 4 * RING_WORDS:
                self.rings.setdefault(name, []).extend(words)
            else:
                lines = self.images.setdefault(name, [])
                if self.places.shown(address).startswith("0x"):
                    self.places.add(f"{name.replace(' ', '')}.graph", address, PAGE)
                lines.append(f"  image at {self.places.shown(address)}, {dwords} words")
                lines += (f"    {line}" for line in text(words))
            return words

        queue.fetch = noted

    def take(self) -> list[str]:
        """The text of what was fetched, queue by queue."""
        lines = []
        for name in sorted({*self.rings, *self.images}):
            text = self.decoder.sdma if name.startswith("SDMA") else self.decoder.pm4
            lines += [f"{name}:", "  ring"]
            lines += (f"    {line}" for line in text(self.rings.pop(name, [])))
            lines += self.images.pop(name, [])
        return lines
