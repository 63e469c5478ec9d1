"""Accesses of local memory (LDS) by several waves of a group without a barrier between them.

Waves run one after another to their next barrier, so what they do to the same bytes has always the
same result here; on a board it depends on their timing. A worker that looks for this has a shadow
of LDS: for each byte the last writer and reader, each with the number of barriers that it had
signalled. An access follows one of another wave only if since then its own wave has waited for more
barriers than the other one had signalled. Atomic operations race with plain stores alone: a relaxed
atomic load is a plain one in machine code, and does not race with them.

Accesses through flat addresses are not followed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ugpu.virtual.amd.isa.decoder.disassembly import text
from ugpu.virtual.amd.isa.runtime import layout
from ugpu.virtual.amd.isa.translator.program import Program
from ugpu.virtual.shader import context
from ugpu.virtual.shader.lanes.every import LDS_SPACE, PREFIX
from ugpu.virtual.shader.native import Native, Word, joined
from ugpu.virtual.shader.text import VECTOR

ACCESS = (
    PREFIX + "lds_access"
)  # (context, addresses, lanes, bytes, kind, offset of the instruction)
PHASE = PREFIX + "lds_phase"  # (context, number of signals, number of waits)
LOAD, STORE, ATOMIC = range(3)  # kinds
# The shadow: what each wave has passed (group + 1, signals, waits), races, then 32 bytes a byte:
# group + 1; wave + 1, signals, offset of the writer; the same of the reader.
_PHASES = 16
_LOG, _RACE, _MOST = 1024, 32, 64
_BYTES, _ENTRY = 4096, 32
_WRITER, _READER = 8, 20
_SIGNALS, _PLACE = 4, 8  # behind a writer and a reader
_IS_ATOMIC, _SEVERAL = 1 << 16, 0xFFFF
_RECORD = struct.Struct("<4IQ")


@dataclass(frozen=True)
class Race:
    """Two accesses without a barrier between them. first, second: offsets of the instructions, in
    the order of the code. waves: their waves. address: a byte of LDS. group: linear."""

    first: int
    second: int
    waves: tuple[int, int]
    address: int
    group: int

    def text(self, program: Program) -> str:
        """Describe it with the program's instructions and their GPU addresses."""
        shown = {i.pc: text(i) for block in program.blocks.values() for i in block.instructions}
        first, second = (
            f"`{shown.get(pc, '')}` at {program.base + pc:#x} (wave {wave})"
            for pc, wave in zip((self.first, self.second), self.waves, strict=True)
        )
        where = f"byte {self.address:#x} of LDS in group {self.group}"
        return f"{first} and {second} race: no barrier between their accesses to {where}"


def shadow() -> NDArray[np.uint8]:
    """Return a shadow of no accesses."""
    return np.zeros(_BYTES + LDS_SPACE * _ENTRY, np.uint8)


def clear(memory: NDArray[np.uint8], size: int) -> None:
    """Forget all accesses, before a launch whose groups have `size` bytes of LDS."""
    memory[: _BYTES + size * _ENTRY] = 0


def races(memory: NDArray[np.uint8]) -> Iterator[Race]:
    """Yield the races in a shadow, the first of each two instructions."""
    (count,) = struct.unpack_from("<I", memory.data, _LOG)
    for number in range(count):
        at = _LOG + _RACE * (number + 1)
        first, second, waves, address, group = _RECORD.unpack_from(memory.data, at)
        pair = (first, waves & 0xFFFF), (second, waves >> 16)
        (first, one), (second, other) = sorted(pair)
        yield Race(first, second, (one, other), address, group)


def races_ir() -> tuple[str, set[str]]:
    """Return the IR of the functions and the declarations they need."""
    return joined([_own_phase(), _phase(), _note(), _access()])


def names() -> list[str]:
    """Return the functions that kernels may call."""
    return [ACCESS, PHASE]


def _own_phase() -> Native:
    """Return the running wave's phase: a pointer to its signals and waits (u32 each)."""
    n = Native("own_phase", "ptr", ("ptr", "context"), part=True)
    wave = n.field(context.HALT_WAVE, "i32").to("i64")
    mine = n.field(layout.RACES, "ptr").byte(wave * _PHASES)
    group = n.field(context.HALT_GROUP, "i64") + 1
    with n.when(n.load("i64", mine).differs(group)):
        n.store(group, mine)
        n.store(n.word(0), mine.byte(8))
    n.give(mine.byte(8))
    return n


def _phase() -> Native:
    """Count signals and waits of the running wave."""
    n = Native(PHASE, "void", ("ptr", "context"), ("i32", "signals"), ("i32", "waits"))
    mine = n.call("ptr", "own_phase", n.given[0])
    n.change(mine, "i32", n.given[1])
    n.change(mine.byte(4), "i32", n.given[2])
    return n


def _note() -> Native:
    """Add a race to the log, unless there is one of the same instructions, or no room."""
    n = Native(
        "note_race", "void", ("ptr", "context"), ("i32", "first"), ("i32", "second"),
        ("i32", "waves"), ("i32", "address"),
    )  # fmt: skip
    _, first, second, waves, address = n.given
    log = n.field(layout.RACES, "ptr").byte(_LOG)
    count = n.load("i32", log).to("i64")
    with n.count(count) as number:
        at = log.byte((number + 1) * _RACE)
        same = n.load("i32", at).same(first) & n.load("i32", at.byte(4)).same(second)
        with n.when(same):
            n.give()
    with n.when(count.below(_MOST)):
        at = log.byte((count + 1) * _RACE)
        for place, value in enumerate((first, second, waves, address)):
            n.store(value, at.byte(4 * place))
        n.store(n.field(context.HALT_GROUP, "i64"), at.byte(16))
        n.change(log, "i32", 1)
    return n


def _access() -> Native:
    """Note the accesses of the enabled lanes, and those of other waves that they race with."""
    n = Native(
        ACCESS, "void", ("ptr", "context"), (VECTOR, "addresses"), ("i32", "lanes"),
        ("i32", "size"), ("i32", "kind"), ("i32", "pc"),
    )  # fmt: skip
    worker, addresses, lanes, size, kind, pc = n.given
    phase = n.call("ptr", "own_phase", worker)
    signals, waits = n.load("i32", phase), n.load("i32", phase.byte(4))
    me = n.field(context.HALT_WAVE, "i32") + 1
    group = n.field(context.HALT_GROUP, "i64") + 1
    memory, limit = n.field(layout.RACES, "ptr"), n.field(context.SHARED_SIZE, "i64")

    def check(address: Word, entry: Word, counts: Word) -> None:
        """Note a race with the wave of an entry. counts: whether its access can be one (i1)."""
        who = n.load("i32", entry) & (_IS_ATOMIC - 1)
        other = who.differs(0) & who.differs(me)
        apart = waits.below(n.load("i32", entry.byte(_SIGNALS)) + 1)
        with n.when(counts & other & apart):
            waves = (who - 1) | (me - 1 << 16)
            before = n.load("i32", entry.byte(_PLACE))
            n.call("void", "note_race", worker, before, pc, waves, address.to("i32"))

    with n.each_lane(lanes) as lane:
        start = addresses.lane(lane).to("i64")
        with n.count(size.to("i64")) as number:
            address = start + number
            with n.when(address.below(limit)):
                entry = memory.byte(address * _ENTRY + _BYTES)
                with n.when(n.load("i64", entry).differs(group)):
                    for place in range(0, _ENTRY, 8):
                        n.store(n.word(0), entry.byte(place))
                    n.store(group, entry)
                writer, reader = entry.byte(_WRITER), entry.byte(_READER)
                plain = n.load("i32", writer).below(_IS_ATOMIC)
                check(address, writer, plain | kind.same(STORE))
                check(address, reader, kind.same(STORE))
                with n.when(kind.differs(LOAD)):
                    atomic = n.choose(kind.same(ATOMIC), n.constant("i32", _IS_ATOMIC), me ^ me)
                    _enter(n, writer, me | atomic, signals, pc)
                with n.when(kind.same(LOAD)):
                    _read(n, reader, me, signals, pc)
    return n


def _enter(n: Native, entry: Word, who: Word, signals: Word, pc: Word) -> None:
    n.store(who, entry)
    n.store(signals, entry.byte(_SIGNALS))
    n.store(pc, entry.byte(_PLACE))


def _read(n: Native, reader: Word, me: Word, signals: Word, pc: Word) -> None:
    """Keep the reader with the most signals; of several, that there are several."""
    known, most = n.load("i32", reader), n.load("i32", reader.byte(_SIGNALS))
    with n.when(known.same(0) | signals.above(most)):
        _enter(n, reader, me, signals, pc)
    with n.when(known.differs(0) & known.differs(me) & signals.same(most)):
        n.store(n.constant("i32", _SEVERAL), reader)
