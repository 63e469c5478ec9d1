"""The macro method expander (MME) of Turing and newer: small programs that turn the parameters of
one method into others.

Sources: open-gpu-doc MME-MacroMethodExpander/tu104 (the encoding: a group is 96 bits, sent as
three words, the high one first; start addresses count words), classes/3d/clc597.h; Mesa
src/nouveau/mme/mme_tu104_sim.c and mme_tu104.h (what each operation does, branches, the sizes of
the memories). UNSURE: that the second ALU reads what the first one has written in the same group,
as Mesa's simulator has it; that parameters a macro does not read are dropped at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from ugpu.virtual.nvidia.faults import Xid
from ugpu.virtual.nvidia.host.errors import ChannelError

WORDS_OF_GROUP = 3
INSTRUCTIONS = 0x1000 * WORDS_OF_GROUP  # words; branches reach so many groups
MACROS = 256
_DATA = 0xC00  # words
_LONGEST = 1 << 16  # groups of one macro. TIMEOUT: ours; a board would reset the context
_MASK = 0xFFFF_FFFF
_ZERO, _IMMEDIATE, _PAIR, _WIDE, _LOAD0, _LOAD1 = range(24, 30)
_OPERATIONS = (
    "ADD", "ADDC", "SUB", "SUBB", "MUL", "MULH", "MULU", "EXTENDED", "CLZ", "SLL", "SRL",
    "SRA", "AND", "NAND", "OR", "XOR", "MERGE", "SLT", "SLTU", "SLE", "SLEU", "SEQ", "STATE",
    "LOOP", "JAL", "BLT", "BLTU", "BLE", "BLEU", "BEQ", "DREAD", "DWRITE",
)  # fmt: skip
# Which of ALU 0, ALU 1, output 0 and output 1 run if the predicate is true, false, or anyhow (U).
_PREDICATES = (
    "UUUU", "TTTT", "FFFF", "TTUU", "FFUU", "TFUU", "TUUU", "FUUU", "UUTT", "UUTF", "UUTU",
    "UUFT", "UUFF", "UUFU", "UUUT", "UUUF",
)  # fmt: skip
_OUTPUTS = ("NONE", "ALU0", "ALU1", "LOAD0", "LOAD1", "IMMED0", "IMMED1", "RESERVED",
            "IMMEDHIGH0", "IMMEDHIGH1", "IMMED32")  # fmt: skip
_BARRIER = (0x1000, 1)  # operands of the only known EXTENDED


class Port(Protocol):
    """The engine behind the MME."""

    def state(self, address: int) -> int:
        """Return the last value of a method."""
        ...

    def expanded(self, address: int, value: int) -> None:
        """Execute a method that a macro has sent."""
        ...

    def fetched(self) -> list[int]:
        """Return the words of memory that earlier methods have read, once; for the barrier."""
        ...


@dataclass(frozen=True)
class Alu:
    """One operation of a group."""

    operation: str
    target: int
    sources: tuple[int, int]
    immediate: int


@dataclass(frozen=True)
class Group:
    """What runs at once. outputs: where the method and where the value of each come from."""

    ends: bool
    predicate: str
    register: int
    alus: tuple[Alu, Alu]
    outputs: tuple[tuple[str, str], tuple[str, str]]

    @property
    def loads(self) -> int:
        """How many parameters it takes: those up to the last that it names."""
        registers = {self.register, *self.alus[0].sources, *self.alus[1].sources}
        names = {name for output in self.outputs for name in output}
        if _LOAD1 in registers or "LOAD1" in names:
            return 2
        return int(_LOAD0 in registers or "LOAD0" in names)


@cache
def decode(words: tuple[int, int, int]) -> Group:
    """Decode a group, as it was sent. Raises ChannelError."""
    bits = words[0] << 64 | words[1] << 32 | words[2]

    def field(high: int, low: int) -> int:
        return bits >> low & (1 << high - low + 1) - 1

    def alu(at: int) -> Alu:
        code, target, first, second = (field(at + 5 * i + 4, at + 5 * i) for i in range(4))
        if target > _ZERO or first > _LOAD1 or second > _LOAD1:
            raise _error(f"registers {target}, {first}, {second}")
        return Alu(_OPERATIONS[code], target, (first, second), field(at + 35, at + 20))

    def output(at: int) -> tuple[str, str]:
        method, value = field(at + 2, at), field(at + 6, at + 3)
        if value >= len(_OUTPUTS) or "RESERVED" in (_OUTPUTS[method], _OUTPUTS[value]):
            raise _error(f"output {method}, {value}")
        return _OUTPUTS[method], _OUTPUTS[value]

    register = field(9, 5)
    if register > _LOAD1:
        raise _error(f"predicate register {register}")
    return Group(bool(field(0, 0)), _PREDICATES[field(4, 1)], register, (alu(10), alu(46)),
                 (output(82), output(89)))  # fmt: skip


def _error(text: str) -> ChannelError:
    return ChannelError(Xid.GR_EXCEPTION, f"MME: {text}")


def _signed(value: int, bits: int = 32) -> int:
    return (value & (1 << bits - 1) - 1) - (value & 1 << bits - 1)


def _merge(first: int, second: int, how: int) -> int:
    place, bits, source = how >> 10, how >> 5 & 0x1F, how & 0x1F
    mask = (1 << bits) - 1
    return (first & ~(mask << place) | (second >> source & mask) << place) & _MASK


_PLAIN: dict[str, Callable[[int, int], int]] = {
    "CLZ": lambda x, y: 32 - x.bit_length(),
    "SLL": lambda x, y: x << (y & 31),
    "SRL": lambda x, y: x >> (y & 31),
    "SRA": lambda x, y: _signed(x) >> (y & 31),
    "AND": lambda x, y: x & y,
    "NAND": lambda x, y: ~(x & y),
    "OR": lambda x, y: x | y,
    "XOR": lambda x, y: x ^ y,
}
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "LT": lambda x, y: _signed(x) < _signed(y),
    "LTU": lambda x, y: x < y,
    "LE": lambda x, y: _signed(x) <= _signed(y),
    "LEU": lambda x, y: x <= y,
    "EQ": lambda x, y: x == y,
}


class Mme:
    """Instruction memory, the macros in it, and the one that runs. Methods arrive in order."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self.instructions: dict[int, int] = {}  # by word
        self.starts: dict[int, int] = {}
        self.data = [0] * _DATA
        self.data_at = 0
        self._at = self._entry = 0
        self._running: Generator[None, int, None] | None = None

    @property
    def waits(self) -> bool:
        """Whether a macro waits for a parameter."""
        return self._running is not None

    def point(self, word: int) -> None:
        """Set where the next word of instructions goes."""
        self._at = word

    def load(self, word: int) -> None:
        """Store a word of instructions."""
        if self._at >= INSTRUCTIONS:
            raise _error(f"word {self._at:#x} of the instruction memory")
        self.instructions[self._at] = word
        self._at += 1

    def point_start(self, macro: int) -> None:
        """Set which macro's start is written next."""
        self._entry = macro

    def load_start(self, word: int) -> None:
        """Set where a macro starts."""
        if self._entry >= MACROS or word >= INSTRUCTIONS:
            raise _error(f"macro {self._entry} at word {word:#x}")
        self.starts[self._entry] = word
        self._entry += 1

    def call(self, macro: int, parameter: int) -> None:
        """Start a macro with its first parameter."""
        if macro not in self.starts:
            raise _error(f"macro {macro} has no start address")
        running = self._running = _Run(self, self._port, self.starts[macro]).run()
        try:
            next(running)
        except StopIteration:
            self._running = None
            return
        self.parameter(parameter)

    def parameter(self, value: int) -> None:
        """Give a further parameter; one that no macro reads is dropped."""
        if self._running is None:
            return
        try:
            self._running.send(value)
        except StopIteration:
            self._running = None
        except BaseException:
            self._running = None
            raise

    def group(self, word: int) -> Group:
        """Return the group at a word."""
        try:
            first, second, third = (self.instructions[word + i] for i in range(WORDS_OF_GROUP))
        except KeyError:
            raise _error(f"no instructions at word {word:#x}") from None
        return decode((first, second, third))


class _Run:
    """A macro that runs."""

    def __init__(self, mme: Mme, port: Port, start: int) -> None:
        self._mme, self._port, self._start = mme, port, start
        self._registers: dict[int, int] = {_ZERO: 0}
        self._loaded = [0, 0]
        self._results = [0, 0]
        self._carry = 0
        self._method = self._step = 0
        self._at, self._next, self._stopped = 0, 0, False
        self._loop: tuple[int, int, int] | None = None  # first and last group, times left
        self._fifo: list[int] = []

    def run(self) -> Generator[None, int, None]:
        """Execute; each yield wants a parameter."""
        ends = False
        for _ in range(_LONGEST):
            group = self._mme.group(self._start + WORDS_OF_GROUP * self._at)
            self._next = self._at + 1
            for slot in range(group.loads):
                self._loaded[slot] = self._fifo.pop(0) if self._fifo else (yield)
            runs = self._predicate(group)
            for unit in (0, 1):
                if runs[unit]:
                    self._execute(group, unit)
            for unit in (0, 1):
                if runs[2 + unit]:
                    self._send(group, *group.outputs[unit])
            if ends or self._stopped:
                return
            ends = group.ends
            if self._loop is not None and self._at == self._loop[1]:
                self._again(self._loop)
            self._at = self._next
        raise _error(f"a macro ran {_LONGEST} groups")

    def _again(self, loop: tuple[int, int, int]) -> None:
        first, last, times = loop
        self._loop = (first, last, times - 1) if times > 1 else None
        self._next = first

    def _predicate(self, group: Group) -> list[bool]:
        if group.predicate == "UUUU":
            return [True] * 4
        value = "T" if self._read(group, group.register, 0) else "F"
        return [letter in ("U", value) for letter in group.predicate]

    def _read(self, group: Group, register: int, unit: int) -> int:
        if register == _IMMEDIATE:
            return _signed(group.alus[unit].immediate, 16) & _MASK
        if register == _PAIR:
            return _signed(group.alus[1 - unit].immediate, 16) & _MASK
        if register == _WIDE:
            return group.alus[0].immediate << 16 | group.alus[1].immediate
        if register in (_LOAD0, _LOAD1):
            return self._loaded[register - _LOAD0]
        if register not in self._registers:
            raise _error(f"register {register} is read before it is written")
        return self._registers[register]

    def _send(self, group: Group, method: str, value: str) -> None:
        if method != "NONE":
            word = self._output(group, method)
            self._method, self._step = word & 0xFFF, word >> 12 & 0xF
        if value != "NONE":
            self._port.expanded(self._method << 2, self._output(group, value))
            self._method = self._method + self._step & 0xFFF

    def _output(self, group: Group, name: str) -> int:
        if name == "IMMED32":
            return group.alus[0].immediate << 16 | group.alus[1].immediate
        unit, kind = int(name[-1]), name[:-1]
        if kind == "ALU":
            return self._results[unit]
        if kind == "LOAD":
            return self._loaded[unit]
        immediate = group.alus[unit].immediate
        return immediate >> 12 if kind == "IMMEDHIGH" else immediate

    def _execute(self, group: Group, unit: int) -> None:
        alu = group.alus[unit]
        x, y = (self._read(group, source, unit) for source in alu.sources)
        result = self._result(alu, x, y) & _MASK
        self._results[unit] = result
        if alu.target != _ZERO:
            self._registers[alu.target] = result

    def _result(self, alu: Alu, x: int, y: int) -> int:
        name = alu.operation
        if name in _PLAIN:
            return _PLAIN[name](x, y)
        if name[0] == "S" and name[1:] in _COMPARISONS:
            return _MASK if _COMPARISONS[name[1:]](x, y) else 0
        if name[0] == "B":
            if _COMPARISONS[name[1:]](x, y) == bool(alu.immediate >> 15):
                self._branch(_signed(alu.immediate, 13))
            return 0
        if name == "MERGE":
            return _merge(x, y, alu.immediate)
        if name in ("ADD", "ADDC", "SUB", "SUBB", "MUL", "MULU", "MULH"):
            return self._arithmetic(name, x, y)
        return self._special(alu, name, x, y)

    def _arithmetic(self, name: str, x: int, y: int) -> int:
        carry = self._carry
        if name == "MULH":
            return carry
        if name in ("ADD", "ADDC"):
            total = x + y + (carry if name == "ADDC" else 0)
        elif name in ("SUB", "SUBB"):
            total = x - y - (carry if name == "SUBB" else 0)
            self._carry = int(total < 0)
            return total
        else:
            total = x * y if name == "MULU" else _signed(x) * _signed(y)
        self._carry = total >> 32 & _MASK
        return total

    def _branch(self, distance: int) -> None:
        if distance == -0x1000:
            self._stopped = True
        else:
            self._next = self._at + distance
            if self._next < 0:
                raise _error(f"a branch to group {self._next}")

    def _special(self, alu: Alu, name: str, x: int, y: int) -> int:
        if name == "STATE":
            return self._port.state((x + y & 0xFFF) << 2)
        if name == "LOOP":
            if self._loop is not None or alu.immediate < 2:
                raise _error("a loop in a loop, or of no groups")
            times = max(1, x) - 1
            last = self._at + alu.immediate - 1
            self._loop = (self._at + 1, last, times) if times else None
            return 0
        if name == "JAL":
            self._next = self._at + (alu.immediate & 0x7FFF)
            return 0
        if name == "EXTENDED":
            if (x, y) != _BARRIER:
                raise _error(f"EXTENDED {x:#x}, {y:#x} is not modelled")
            self._fifo += self._port.fetched()
            return 0
        if x >= _DATA:
            raise _error(f"word {x:#x} of the data memory")
        if name == "DWRITE":
            self._mme.data[x] = y
            return 0
        return self._mme.data[x]
