"""Registers that an instruction reads and writes, by halves: 2n and 2n + 1 stand for register n.

Half registers of threads are halves of full ones (hr0.x of r0.x) only with MERGEDREGS. Without it
they are separate, and half register n has the number SEPARATE + n.

Registers selected by a0.x are not known, and omitted.
Source: Mesa 25.0.7, src/freedreno/isa/ir3-cat*.xml.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ugpu.virtual.adreno.sp.operands import (
    A0,
    SEPARATE,
    SHARED,
    SHARED_END,
    TYPES,
    WIDE,
    Kind,
    Op,
    Operand,
)

_SHORT = ("f16", "u16", "s16", "u8")
_SOURCES = {"ldl": "SRC", "ldlw": "SRC", "ldp": "SRC", "stl": "DST", "stlw": "DST", "stp": "DST"}


@dataclass
class Touched:
    """Registers, by halves. constants: whether the instruction reads the constant file. words: the
    words of it that are read, except those selected by a0.x."""

    reads: set[int] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)
    constants: bool = False
    words: set[int] = field(default_factory=set)

    def read_constants(self, number: int, count: int = 1) -> None:
        """Note `count` words of the constant file from `number` on."""
        self.constants = True
        self.words |= set(range(number, number + count))


def halves(number: int, half: bool, count: int = 1) -> set[int]:
    """Return the halves of consecutive registers, those of half registers as if separate; none of
    a0, p0 and r63."""
    found: set[int] = set()
    for k in range(number, number + count):
        if number >= A0 or (SHARED_END <= k < A0):
            continue
        if half:
            found.add(SHARED + k if k >= SHARED else SEPARATE + k)
        else:
            found |= {2 * k, 2 * k + 1}
    return found


def is_shared(half: int) -> bool:
    """Return whether a half belongs to a shared register."""
    return 2 * SHARED <= half < SEPARATE


def _operand(into: set[int], found: Touched, operand: Operand, repeat: int) -> None:
    if operand.kind is Kind.REGISTER:
        count = repeat + 1 if operand.step else 1
        into |= halves(operand.number, operand.half, count)
    elif operand.kind is Kind.CONSTANT:
        found.read_constants(operand.number, repeat + 1 if operand.step else 1)
    elif operand.kind is Kind.RELATIVE_CONSTANT:
        found.constants = True


def touched(op: Op) -> Touched:
    """Return the registers that an instruction reads and writes."""
    found = _touched(op)
    if op.merged:
        found.reads, found.writes = _merged(found.reads), _merged(found.writes)
    return found


def _merged(numbers: set[int]) -> set[int]:
    return {half - SEPARATE if half >= SEPARATE else half for half in numbers}


def _touched(op: Op) -> Touched:
    found = Touched()
    if op.category == 1:
        _moves(op, found)
    elif op.category in (2, 3, 4):
        _operand(found.writes, found, op.target, op.repeat)
        for operand in op.sources:
            _operand(found.reads, found, operand, op.repeat)
    elif op.category == 5 and op.scope.has("DST"):
        _sampled(op, found)
    elif op.category == 6:
        _moved_by_memory(op, found)
    elif op.name == "alias":
        if op.raw("SRC_REG_TYPE") == 0:
            found.reads |= halves(op.scope.inner("SRC").bits, not op.raw("TYPE_SIZE"))
        if op.raw("SRC_REG_TYPE") == 1:
            found.read_constants(op.scope.inner("SRC").bits)
    return found


def _moves(op: Op, found: Touched) -> None:
    if op.name.startswith("mov-") or op.name.startswith("movs-"):
        target, source = op.moved
        _operand(found.writes, found, target, op.repeat)
        _operand(found.reads, found, source, op.repeat)
    elif op.name == "movmsk":
        found.writes |= halves(op.raw("DST"), False, op.raw("REPEAT") + 1)
    elif op.name in ("swz", "gat", "sct"):
        half, short = bool(op.raw("HALF")), bool(op.raw("DST_HALF"))
        for k in range(4):
            for name, into, narrow in (("SRC", found.reads, half), ("DST", found.writes, short)):
                if op.scope.has(f"{name}{k}"):
                    into |= halves(op.raw(f"{name}{k}"), narrow)
        if op.name == "gat":
            found.writes |= halves(op.raw("DST0"), short, 4)
        if op.name == "sct":
            found.reads |= halves(op.raw("SRC0"), half, 4)


def _sampled(op: Op, found: Touched) -> None:
    mask = op.raw("WRMASK")
    short = bool(op.raw("DST_HALF"))
    for k in range(4):
        if mask >> k & 1:
            found.writes |= halves(op.raw("DST") + k, short)
    if op.scope.has("NUM_SRC") and op.raw("NUM_SRC"):
        found.reads |= halves(op.scope.inner("SRC1").bits, not op.raw("FULL"))


def _register(op: Op, name: str) -> int | None:
    """Return the number of a register source; None for an immediate or a constant."""
    if not op.scope.has(name) or op.flag(name + "_IM") or op.flag(name + "_CONST"):
        return None
    return op.raw(name)


def _moved_by_memory(op: Op, found: Touched) -> None:
    name = op.name
    short = op.scope.has("TYPE") and TYPES[op.raw("TYPE")] in _SHORT
    size = op.raw("SIZE") if op.scope.has("SIZE") else 1
    if name in _SOURCES:
        found.reads |= halves(op.raw(_SOURCES[name]), False)
        into = found.writes if name.startswith("ld") else found.reads
        data = op.raw("DST") if name.startswith("ld") else op.raw("SRC")
        into |= halves(data, short, size)
    elif name in ("ldg", "ldg.a", "stg", "stg.a", "ldg.k"):
        if op.flag("SRC1_CONST"):
            found.read_constants(op.scope.inner("SRC1").bits, 2)
        else:
            found.reads |= halves(op.raw("SRC1"), False, 2)
        if name.endswith(".a"):
            found.reads |= halves(op.raw("SRC2"), False)
        if name.startswith("stg"):
            found.reads |= halves(op.raw("SRC3"), short, size)
        elif name != "ldg.k":
            found.writes |= halves(op.raw("DST"), short, size)
    elif name == "stc":
        found.reads |= halves(op.raw("SRC"), short, size)
    elif name == "shfl":
        found.reads |= halves(op.raw("SRC1"), short)
        found.writes |= halves(op.raw("DST"), short)
        _source(op, found, "SRC2")
    elif name.startswith("atomic.b."):
        _uav(op, found, op.raw("D"))
        found.writes |= halves(op.raw("SRC1"), False)
        found.reads |= halves(op.raw("SRC1") + 1, False, 2 if "cmpxchg" in name else 1)
    elif name.startswith("atomic."):
        words = 2 if op.raw("TYPE") == WIDE else 1
        _source(op, found, "SRC1", 2 if name.startswith("atomic.g.") else 1)
        _source(op, found, "SRC2", words * (2 if "cmpxchg" in name else 1))
        found.writes |= halves(op.raw("DST"), False, words)
    elif name in ("ldib.b", "stib.b"):
        _uav(op, found, op.raw("D"))
        into = found.writes if name == "ldib.b" else found.reads
        into |= halves(op.raw("SRC1"), short, op.raw("TYPE_SIZE"))
    elif name == "ldc":
        found.writes |= halves(op.raw("DST"), short, op.raw("TYPE_SIZE"))
        _source(op, found, "SRC1")
        _source(op, found, "SRC2")
    elif name == "resinfo.b":
        found.writes |= halves(op.raw("DST"), False, 3)
        _source(op, found, "SSBO")
    elif op.scope.has("DST") and name != "ldc.k":
        found.writes |= halves(op.raw("DST"), short)


def _source(op: Op, found: Touched, name: str, count: int = 1) -> None:
    number = _register(op, name)
    if number is not None:
        found.reads |= halves(number, False, count)


def _uav(op: Op, found: Touched, coordinates: int) -> None:
    found.reads |= halves(op.raw("SRC2"), False, coordinates)
    _source(op, found, "SSBO")
