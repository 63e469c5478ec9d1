"""What ir3 code computes, in NumPy: all threads of all groups at once, instruction by instruction.

It reads Mesa's assembly text, so that it shares nothing with our decoder but the words. Sources:
Mesa's src/freedreno/isa/ir3-cat*.xml (documentation of instructions), src/freedreno/ir3/
ir3_compiler_nir.c and src/compiler/nir/nir_opcodes.py (which operation of NIR each one stands for).
What they do not say: a multiply-add rounds once; rcp, sqrt and their like are correctly rounded;
min.f and max.f return the other operand where one is NaN.

Threads that branch differently wait for those behind them: of all threads the ones at the lowest
address run. Registers are merged (hr0.x and hr0.y are the halves of r0.x) unless
a machine is made with `merged` off: half registers of threads are then a file of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.oracles.ir3_operations import (  # fmt: skip
    COMPARISONS,
    F16,
    F32,
    I16,
    I32,
    OPERATIONS,
    TYPES,
    U16,
    U32,
    Array,
    NotKnown,
    converted,
    held,
    saturated,
    signed,
)
from lab.oracles.ir3_texels import Buffer, alias, fetch

FLUT = {
    "e": np.e, "pi": np.pi, "1/pi": 1 / np.pi, "1/log2(e)": np.log(2), "log2(e)": np.log2(np.e),
    "1/log2(10)": np.log10(2), "log2(10)": np.log2(10),
}  # fmt: skip
SHARED = 192  # the number of r48.x: from here on registers belong to a wave
WAVE = 64
_MARKS = re.compile(r"^\((sy|ss|jp|sat|ul|eq|rpt\d|nop\d)\) ?")
_OPERAND = re.compile(r"^((?:\((?:last|neg|abs|absneg|r|even|pos_infinity|neg_infinity)\))*)(.*)$")
_REGISTER = re.compile(r"^(h?)([rcp])(\d+)\.([xyzw])$")
_ADDRESS = re.compile(r"^g\[(r[\d.xyzw]+)(?:\+\(?(r[\d.xyzw]+)(?:<<(\d))?\)?)?(?:\+?(-?\d+))?\]$")
_LOCAL = re.compile(r"^l\[(r[\d.xyzw]+)(?:([+-]\d+))?\]$")


@dataclass(frozen=True)
class Line:
    """One instruction as text, taken apart."""

    name: str
    kinds: tuple[str, ...]
    operands: tuple[str, ...]
    repeat: int
    saturate: bool


def parse(text: str) -> Line:
    repeat, saturate = 0, False
    while (mark := _MARKS.match(text)) is not None:
        repeat = int(mark[1][3:]) if mark[1].startswith("rpt") else repeat
        saturate = saturate or mark[1] == "sat"
        text = text[mark.end() :]
    name, _, rest = text.partition(" ")
    base, *kinds = name.split(".")
    return Line(base, tuple(kinds), tuple(rest.split(", ")) if rest else (), repeat, saturate)


class Memory:
    """Global memory: arrays at addresses that cross a multiple of 2^32."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.base = (1 << 32) - 4096
        places, size = [], 4096 - 256
        for array in arrays:
            places.append(self.base + size)
            size += array.nbytes + -array.nbytes % 256 + 256
        self.bytes = np.full(size, 0xA5, np.uint8)
        self.addresses = places
        for array, place in zip(arrays, places, strict=True):
            start = place - self.base
            self.bytes[start : start + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)

    def at(self, addresses: Array, size: int) -> Array:
        """Places of the bytes of accesses; AssertionError outside of all arrays."""
        offsets = addresses.astype(np.int64) - self.base
        assert (offsets >= 0).all() and (offsets + size <= len(self.bytes)).all(), "page fault"
        places: Array = offsets[:, None] + np.arange(size)
        return places


class Machine:
    """All threads of a launch."""

    def __init__(
        self, text: Sequence[str], groups: tuple[int, int, int], threads: int, local: int,
        constants: Array, memory: Memory, group_register: int, thread_register: int,
        textures: Sequence[Buffer] = (), merged: bool = True,
    ) -> None:  # fmt: skip
        self.code = [parse(line) for line in text]
        count = groups[0] * groups[1] * groups[2] * threads
        self.count, self.threads = count, threads
        self.words = np.zeros((SHARED, count), U32)
        self.shared = np.zeros((32, count), U32)
        self.halves = None if merged else np.zeros((SHARED, count), U16)
        self.predicates = np.zeros((4, count), bool)
        self.constants = constants
        self.memory = memory
        self.textures = textures
        self.aliases: dict[str, str] = {}
        self.local = np.full((count // threads, max(local, 4)), 0x5A, np.uint8)
        number = np.arange(count) // threads
        if thread_register < 0xFC:
            self.words[thread_register] = np.arange(count) % threads
        for axis in range(3):
            if group_register < 0xFC:
                self._word(group_register + axis)[:] = number % groups[axis]
            number //= groups[axis]
        self.place = np.zeros(count, np.int64)
        self.mask = np.ones(count, bool)  # of predicated execution
        self.active = self.mask

    def _word(self, register: int) -> Array:
        row: Array = self.words[register] if register < SHARED else self.shared[register - SHARED]
        return row

    # ---- operands ------------------------------------------------------------------------------

    def read(self, operand: str, kind: Any, step: int = 0) -> Array:
        """A source of the active threads, as a type of 16 or 32 bits."""
        found = _OPERAND.match(operand)
        assert found is not None, operand
        marks, body = found[1], found[2]
        width = np.dtype(kind).itemsize
        if "(last)" in marks:
            marks = marks.replace("(last)", "")
        value = self._value(body, kind, step if "(r)" in marks else 0, width)
        is_float = np.dtype(kind).kind == "f"
        if "(abs" in marks:
            value = np.abs(value) if is_float else np.abs(value.view(signed(width))).view(kind)
        if "neg)" in marks:
            value = -value if is_float else (~value + 1).astype(kind)
        return value

    def _value(self, body: str, kind: Any, step: int, width: int) -> Array:
        register = _REGISTER.match(body)
        if register is None:
            return np.full(int(self.active.sum()), _immediate(body, kind), kind)
        half, file = bool(register[1]), register[2]
        number = int(register[3]) * 4 + "xyzw".index(register[4]) + step
        if file == "p":
            truth: Array = self.predicates[number][self.active].astype(kind)
            return truth
        if file == "c":
            word = self.constants[number]
            bits = np.array([word], U32)
            if half:  # a 32-bit constant read as 16 bits: floats are converted
                single = bits.view(F32).astype(F16).view(U16)
                bits16 = single if np.dtype(kind).kind == "f" else bits.astype(U16)
                return np.repeat(bits16.view(kind), int(self.active.sum()))
            return np.repeat(bits.view(kind), int(self.active.sum()))
        if half:
            return (
                self._half(number)[self.active].view(kind)
                if width == 2
                else (self._half(number)[self.active].astype(kind))
            )
        assert width == 4, f"{body} is read as {kind}"
        return self._word(number)[self.active].view(kind)

    def _half(self, number: int) -> Array:
        if self.halves is not None and number < SHARED:
            own: Array = self.halves[number]
            return own
        base = SHARED if number >= SHARED else 0
        word = self._word(base + (number - base) // 2)
        half: Array = (word >> U32(16 * (number & 1))).astype(U16)
        return half

    def write(self, operand: str, value: Array, step: int = 0) -> None:
        """A result into a register, as wide as that is; bits as they are."""
        found = _OPERAND.match(operand)
        assert found is not None
        register = _REGISTER.match(found[2])
        if register is None:
            raise NotKnown(operand)
        number = int(register[3]) * 4 + "xyzw".index(register[4]) + step
        if register[2] == "p":
            self.predicates[number][self.active] = value != 0
            return
        if register[1]:
            bits = value.view(U16) if value.dtype.itemsize == 2 else value.astype(U16)
            if self.halves is not None and number < SHARED:
                self.halves[number][self.active] = bits
                return
            base = SHARED if number >= SHARED else 0
            word, shift = self._word(base + (number - base) // 2), U32(16 * (number & 1))
            kept = word[self.active] & ~(U32(0xFFFF) << shift)
            word[self.active] = kept | bits.astype(U32) << shift
        else:
            wide = value.view(U32) if value.dtype.itemsize == 4 else value.astype(U32)
            self._word(number)[self.active] = wide

    # ---- running -------------------------------------------------------------------------------

    def run(self, limit: int = 2_000_000) -> None:
        """Until all threads have ended."""
        live = np.ones(self.count, bool)
        with np.errstate(all="ignore"):
            for _ in range(limit):
                here = int(self.place[live].min())
                at = live & (self.place == here)
                self.active = at & self.mask
                line = self.code[here]
                if line.name == "end":
                    live &= ~at
                    if not live.any():
                        return
                    continue
                self.place[at] += 1
                if line.name in _FLOW:
                    _FLOW[line.name](self, line, at, live, here)
                elif self.active.any():
                    for step in range(line.repeat + 1):
                        self._step(line, step)
        raise AssertionError("the kernel does not end")

    def _step(self, line: Line, step: int) -> None:
        name = line.name
        if name in ("nop", "fence", "lock", "unlock", "shps", "shpe"):
            return  # a preamble (shps .. shpe) runs in every wave here, which gives the same
        if name == "stc":
            self._constant(line)
            return
        if name in ("mov", "cov"):
            source, target = re.findall(r"[fus]\d+", line.kinds[0])
            value = converted(self.read(line.operands[1], held(source), step), source, target)
            self.write(line.operands[0], value, step)
        elif name == "swz":
            values = [self.read(operand, U32) for operand in line.operands[2:]]
            for operand, value in zip(line.operands[:2], values, strict=True):
                self.write(operand, value)
        elif name in ("ldg", "ldl"):
            self._load(line)
        elif name in ("stg", "stl"):
            self._store(line)
        elif name == "alias":
            alias(self, line.operands)
        elif name in ("isam", "isaml"):
            fetch(self, name, line.operands)
        elif name == "shfl":
            self._exchange(line)
        else:
            self._arithmetic(line, step)

    def _arithmetic(self, line: Line, step: int) -> None:
        target, *sources = line.operands
        half = any(re.match(r"(\(\w+\))*h", source) for source in sources)
        kind = _kind(line, half)
        operation = OPERATIONS.get(".".join((line.name, *line.kinds[:1])))
        if operation is None:
            operation = OPERATIONS.get(line.name)
        if operation is None:
            raise NotKnown(f"{line.name} {line.kinds}")
        values = [self.read(source, kind, step) for source in sources]
        if line.name == "cmps":
            result = COMPARISONS[line.kinds[1]](*values).astype(U32)
        else:
            result = operation(*values)
        if line.saturate:
            result = saturated(line.name, result, values)
        if result.dtype.kind == "f":
            wanted = F16 if re.match(r"(\(\w+\))*h", target) else F32
            result = result.astype(wanted)
        self.write(target, result, step)

    # ---- memory --------------------------------------------------------------------------------

    def _where(self, line: Line, operand: str, kind: Any) -> Array:
        """Addresses in global memory."""
        found = _ADDRESS.match(operand.replace("((", "(").replace("))", ")"))
        if found is None:
            raise NotKnown(operand)
        base = found[1]
        low = self.read(base, U32).astype(np.uint64)
        high = self._next(base).astype(np.uint64)
        address = low | high << np.uint64(32)
        if found[2]:
            shift = np.uint64(int(found[3] or 0))
            address = address + (self.read(found[2], U32).astype(np.uint64) << shift)
        return address + np.uint64(int(found[4] or 0) & (1 << 64) - 1)

    def _next(self, register: str) -> Array:
        found = _REGISTER.match(register)
        assert found is not None
        number = int(found[3]) * 4 + "xyzw".index(found[4]) + 1
        return self._word(number)[self.active]

    def _places(self, line: Line, operand: str, size: int) -> tuple[Array, Array | None]:
        """Where the bytes of an access lie, and of local memory whose."""
        if operand.startswith("g"):
            return self.memory.at(self._where(line, operand, U32), size), None
        found = _LOCAL.match(operand)
        if found is None:
            raise NotKnown(operand)
        start = self.read(found[1], U32) + U32(int(found[2] or 0) & 0xFFFFFFFF)
        places = start.astype(np.int64)[:, None] + np.arange(size)
        assert (places >= 0).all() and (places < self.local.shape[1]).all(), "outside local memory"
        return places, (np.arange(self.count) // self.threads)[self.active][:, None]

    def _load(self, line: Line) -> None:
        target, where, count = line.operands
        kind = np.dtype(TYPES[line.kinds[-1]])
        places, group = self._places(line, where, kind.itemsize * int(count))
        data = self.memory.bytes[places] if group is None else self.local[group, places]
        values = np.ascontiguousarray(data).view(kind)
        for lane in range(int(count)):
            value = values[:, lane]
            self.write(_held_name(target, kind), value.astype(U16) if kind.itemsize == 1 else
                       np.ascontiguousarray(value), lane)  # fmt: skip

    def _store(self, line: Line) -> None:
        where, source, count = line.operands
        kind = np.dtype(TYPES[line.kinds[-1]])
        places, group = self._places(line, where, kind.itemsize * int(count))
        held = "(r)" + _held_name(source.replace("(last)", ""), kind)
        wide = U32 if kind.itemsize == 4 else U16
        columns = [self.read(held, wide, lane) for lane in range(int(count))]
        stored = np.uint8 if kind.itemsize == 1 else wide
        data = np.stack([column.astype(stored) for column in columns], axis=1).view(np.uint8)
        if group is None:
            self.memory.bytes[places] = data
        else:
            self.local[group, places] = data

    def _constant(self, line: Line) -> None:
        """stc: words into the constant file, the same from all threads."""
        where, source, count = line.operands
        first = int(where[2:-1])
        for lane in range(int(count)):
            values = self.read("(r)" + source.replace("(last)", ""), U32, lane)
            assert (values == values[0]).all(), "threads store different constants"
            self.constants[first + lane] = values[0]

    def _exchange(self, line: Line) -> None:
        """shfl.xor: what another lane of the wave has. It must run."""
        target, source, mask = line.operands
        lanes = np.arange(self.count)
        thread = lanes % self.threads
        other = lanes - thread + (thread & ~(WAVE - 1)) + ((thread ^ int(mask)) & (WAVE - 1))
        values = np.zeros(self.count, U32)
        values[self.active] = self.read(source, U32)
        assert self.active[other[self.active]].all(), "a lane reads from one that does not run"
        self.write(target, values[other[self.active]])


def _held_name(operand: str, kind: np.dtype[Any]) -> str:
    """ldl and stl print narrow registers without the h that they have."""
    return "h" + operand if kind.itemsize < 4 and operand.startswith("r") else operand


def _immediate(body: str, kind: Any) -> Any:
    text = body.removeprefix("h")
    if text.startswith("("):
        text = text[1:-1]
    if text in FLUT:
        return kind(FLUT[text])
    number = float(text) if "." in text else int(text, 0)
    if np.dtype(kind).kind == "f":
        return kind(number)
    bits = 8 * np.dtype(kind).itemsize
    return np.array([int(number) & (1 << bits) - 1], f"u{bits // 8}").view(kind)[0]


def _kind(line: Line, half: bool) -> Any:
    """The type in which an instruction computes."""
    last = line.kinds[0] if line.kinds else "b"
    letter = last[0]
    if last[1:] == "16" and letter != "m":
        half = True
    if letter == "f" or line.name in ("rcp", "rsq", "sqrt", "exp2", "log2", "sin", "cos"):
        return F16 if half else F32
    if letter == "s":
        return I16 if half else I32
    return U16 if half else U32


# ---- control flow --------------------------------------------------------------------------------


def _condition(machine: Machine, text: str) -> Array:
    value: Array = machine.predicates["xyzw".index(text[-1])]
    return ~value if text.startswith("!") else value


def _branch(machine: Machine, line: Line, at: Array, live: Array, here: int) -> None:
    *tests, target = line.operands
    taken = _condition(machine, tests[0]) if tests else np.ones(machine.count, bool)
    if line.name == "brao":
        taken = taken | _condition(machine, tests[1])
    elif line.name == "braa":
        taken = taken & _condition(machine, tests[1])
    machine.place[at & taken] = here + int(target.removeprefix("#"))


def _predicate(machine: Machine, line: Line, at: Array, live: Array, here: int) -> None:
    if line.name == "prede":
        machine.mask = np.where(at, True, machine.mask)
    else:
        wanted = machine.predicates[0] == (line.name == "predt")
        machine.mask = np.where(at, wanted, machine.mask)


def _barrier(machine: Machine, line: Line, at: Array, live: Array, here: int) -> None:
    groups = np.arange(machine.count) // machine.threads
    assert not np.isin(groups[live & ~at], groups[at]).any(), "a thread misses a barrier"


def _one(machine: Machine, line: Line, at: Array, live: Array, here: int) -> None:
    """getone: one thread of each wave goes on, the others go to the target."""
    waves = np.arange(machine.count) // machine.threads * 4096
    waves = waves + np.arange(machine.count) % machine.threads // WAVE
    places = np.flatnonzero(at)
    _, first = np.unique(waves[places], return_index=True)
    others = at.copy()
    others[places[first]] = False
    machine.place[others] = here + int(line.operands[0].removeprefix("#"))


_FLOW: Mapping[str, Callable[[Machine, Line, Array, Array, int], None]] = {
    "getone": _one, "br": _branch, "brao": _branch, "braa": _branch, "jump": _branch,
    "predt": _predicate, "predf": _predicate, "prede": _predicate, "bar": _barrier,
}  # fmt: skip
