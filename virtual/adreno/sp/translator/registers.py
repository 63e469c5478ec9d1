"""A wave's registers, masks and operands as LLVM IR.

Half registers are the halves of full ones (MERGEDREGS: hr0.x and hr0.y those of r0.x), or a file of
their own, which then follows the full registers in the wave state. Shared registers (r48 and up)
belong to the wave: a write stores the value of the first active lane. UNSURE: their halves are
merged in either case; no public document confirms it.
Source: Mesa 25.0.7, src/freedreno/ir3/ir3.h (registers), isa/ir3-cat1.xml (relative ones).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ugpu.virtual.adreno.sp.operands import A0, A1, NONE, P0, SHARED, SHARED_END, Kind, Op, Operand
from ugpu.virtual.adreno.sp.runtime import layout
from ugpu.virtual.shader.text import Text, constant, integer_of, lanes


class Unsupported(Exception):
    """These processors do not execute an instruction, or not in this form."""


class Registers(Text):
    """Collect the code of one kernel.

    full: every lane is known to be active in the code being emitted. relative: some instruction
    selects registers by a0.x, so that the register file is in memory. words: size of the register
    file. separate: the word in it where the half registers begin, 0 if they are merged.
    """

    def __init__(
        self, lanes: int, words: int, relative: bool, generation: int,
        *, separate: int = 0, private_per_wave: bool = False, prefix: str = "t",
    ) -> None:  # fmt: skip
        super().__init__(lanes, prefix)
        self.private_per_wave = private_per_wave
        self.slots: set[str] = set()
        self.both = True  # blocks are emitted with and without a mask
        self.stepped = False  # a debugger stops at every instruction
        self.in_state = False  # all registers are in the wave state
        self.predicating = False  # the program contains predt or predf
        self.words, self.relative, self.generation = words, relative, generation
        self.separate = separate
        self.used: set[int] = set()
        self.shared: set[int] = set()
        self.full = False
        self.aliases: dict[tuple[bool, int], Operand] = {}  # (half, register), from alias.tex
        self._exec: str | None = None
        self._mask: str | None = None

    # ---- masks ---------------------------------------------------------------------------------

    def forget_masks(self) -> None:
        """Discard cached masks: the active lanes have changed, or a block begins."""
        self._exec = self._mask = None

    def exec(self) -> str:
        """Return the active lanes as a number, predication included."""
        if self.full and not self.predicating:
            return "-1"
        if self._exec is None:
            self._exec = "-1" if self.full else self.value(f"load {self.bits}, ptr %exec")
            if self.predicating:
                predicated = self.value(f"load {self.bits}, ptr %predicated")
                self._exec = self.value(f"and {self.bits} {self._exec}, {predicated}")
        return self._exec

    @contextmanager
    def only(self, active: str) -> Iterator[None]:
        """Emit the enclosed code for a subset of the active lanes, given as a number."""
        before = self.full, self._exec, self._mask
        self.full, self._exec, self._mask = False, active, None
        try:
            yield
        finally:
            self.full, self._exec, self._mask = before

    @property
    def every(self) -> bool:
        """Return whether all lanes are known to be active in the code being emitted."""
        return self.full and not self.predicating

    def mask(self) -> str | None:
        """Return the active lanes as a vector; None where all are."""
        if self.every:
            return None
        if self._mask is None:
            self._mask = self.as_mask(self.exec())
        return self._mask

    def lane_mask(self) -> str:
        """Return the active lanes as a vector."""
        return self.mask() or "splat (i1 true)"

    def first(self) -> str:
        """Return the number of the first active lane as i32; 0 where none is."""
        if self.every:
            return "0"
        count = self.call(self.bits, f"llvm.cttz.{self.bits}", (self.bits, self.exec()),
                          ("i1", "false"))  # fmt: skip
        short = self.value(f"trunc {self.bits} {count} to i32")
        return self.value(f"and i32 {short}, {self.lanes - 1}")

    def some(self) -> str | None:
        """Return as i1 whether a lane is active; None where all are."""
        return None if self.every else self.value(f"icmp ne {self.bits} {self.exec()}, 0")

    def lane_slot(self, element: str) -> str:
        """Return memory for a vector, used to permute its lanes."""
        self.slots.add(element)
        return f"%slot.{element}"

    # ---- registers -----------------------------------------------------------------------------

    def word(self, number: int) -> str:
        """Read 32 bits of every lane."""
        if 0 <= number < self.full_words:
            return self._stored(number)
        if SHARED <= number < SHARED_END:
            return self.broadcast("i32", self.scalar(number))
        if P0 <= number < P0 + 4:
            return self.convert("zext", "i1", "i32", self.as_mask(self.predicate(number - P0)))
        raise Unsupported(f"register {number >> 2}.{'xyzw'[number & 3]} is not in the footprint")

    @property
    def full_words(self) -> int:
        """Return the number of full registers."""
        return self.separate or self.words

    def _stored(self, number: int) -> str:
        self.used.add(number)
        return self.value(f"load {self.vector}, ptr %r{number}, align 64")

    def _half_word(self, number: int) -> tuple[int, bool]:
        """Return the word of the file that contains a half register, and whether as its upper
        half. A shared one lies in a shared register."""
        if number >= SHARED:
            return SHARED + (number - SHARED) // 2, bool(number & 1)
        word, odd = self.separate + number // 2, bool(number & 1)
        if word >= self.words:
            name = f"hr{number >> 2}.{'xyzw'[number & 3]}"
            raise Unsupported(f"register {name} is not in the footprint")
        return word, odd

    def scalar(self, number: int) -> str:
        """Read a shared register."""
        self.shared.add(number)
        return self.value(f"load i32, ptr %s{number}")

    def short(self, number: int) -> str:
        """Read a half register."""
        if number == A0:
            return self.value(f"load {self.vector_of('i16')}, ptr %a0, align 64")
        if P0 <= number < P0 + 4:
            return self.convert("trunc", "i32", "i16", self.word(number))
        where, odd = self._half_word(number)
        word = self.word(where) if number >= SHARED else self._stored(where)
        if odd:
            word = self.binary("lshr", "i32", word, constant("i32", 16))
        return self.convert("trunc", "i32", "i16", word)

    def keep(self, kind: str, slot: str, value: str) -> None:
        """Store a vector of `kind` where lanes are active."""
        mask = self.mask()
        if mask is not None:
            old = self.value(f"load {self.vector_of(kind)}, ptr {slot}, align 64")
            value = self.select(mask, kind, value, old)
        self.do(f"store {self.vector_of(kind)} {value}, ptr {slot}, align 64")

    def set_word(self, number: int, value: str) -> None:
        """Write 32 bits (i32) of the active lanes."""
        if number >= NONE:
            return
        if 0 <= number < self.full_words:
            self._set_stored(number, value)
        elif SHARED <= number < SHARED_END:
            self.set_scalar(number, self.lane("i32", value, self.first()))
        elif P0 <= number < P0 + 4:
            self.set_predicate(number, self.compare("ne", "i32", value, constant("i32", 0)))
        else:
            raise Unsupported(f"a result in register {number >> 2}.{'xyzw'[number & 3]}")

    def _set_stored(self, number: int, value: str) -> None:
        self.used.add(number)
        self.keep("i32", f"%r{number}", value)

    def set_scalar(self, number: int, value: str) -> None:
        """Write a shared register where a lane is active."""
        self.shared.add(number)
        some = self.some()
        if some is not None:
            old = self.value(f"load i32, ptr %s{number}")
            value = self.value(f"select i1 {some}, i32 {value}, i32 {old}")
        self.do(f"store i32 {value}, ptr %s{number}")

    def set_short(self, number: int, value: str) -> None:
        """Write a half register (i16) of the active lanes."""
        if number >= NONE:
            return
        if number == A0:
            self.keep("i16", "%a0", value)
            return
        if number == A1:
            one = self.value(f"zext i16 {self.lane('i16', value, self.first())} to i32")
            some = self.some()
            if some is not None:
                old = self.value("load i32, ptr %a1")
                one = self.value(f"select i1 {some}, i32 {one}, i32 {old}")
            self.do(f"store i32 {one}, ptr %a1")
            return
        if P0 <= number < P0 + 4:
            self.set_predicate(number, self.compare("ne", "i16", value, constant("i16", 0)))
            return
        where, odd = self._half_word(number)
        wide = self.convert("zext", "i16", "i32", value)
        if odd:
            wide = self.binary("shl", "i32", wide, constant("i32", 16))
        kept = constant("i32", 0x0000FFFF if odd else 0xFFFF0000)
        old = self.word(where) if number >= SHARED else self._stored(where)
        word = self.binary("or", "i32", self.binary("and", "i32", old, kept), wide)
        (self.set_word if number >= SHARED else self._set_stored)(where, word)

    def predicate(self, number: int) -> str:
        """Return a predicate of every lane as a number. number: 0 to 3, the component of p0."""
        return self.value(f"load {self.bits}, ptr %p{number}")

    def set_predicate(self, number: int, value: str) -> None:
        """Write a predicate (a condition of each lane) of the active lanes. number: of the
        register."""
        bits, slot = self.as_bits(value), f"%p{number - P0}"
        if not self.every:
            old = self.value(f"load {self.bits}, ptr {slot}")
            other = self.value(f"xor {self.bits} {old}, {bits}")
            moved = self.value(f"and {self.bits} {other}, {self.exec()}")
            bits = self.value(f"xor {self.bits} {old}, {moved}")
        self.do(f"store {self.bits} {bits}, ptr {slot}")

    # ---- relative registers --------------------------------------------------------------------

    def _index(self, offset: int, limit: int) -> tuple[str, str]:
        """Return a0.x plus an offset for every lane, and the mask of lanes below a limit; 0 for the
        others."""
        index = self.convert("sext", "i16", "i32", self.short(A0))
        index = self.binary("add", "i32", index, constant("i32", offset))
        inside = self.compare("ult", "i32", index, constant("i32", limit))
        return self.select(inside, "i32", index, constant("i32", 0)), inside

    def _pointers(self, base: str, elements: str) -> str:
        wide = self.convert("zext", "i32", "i64", elements)
        return self.value(f"getelementptr i32, ptr {base}, {self.vector_of('i64')} {wide}")

    def gather(self, base: str, elements: str, mask: str) -> str:
        """Load a word of every lane by its index from `base`; 0 where the mask is not set."""
        kind = self.vector_of("ptr")
        pointers = self._pointers(base, elements)
        return self.call(
            self.vector, f"llvm.masked.gather.v{self.lanes}i32.v{self.lanes}p0", (kind, pointers),
            (self.vector_of("i1"), mask), (self.vector, "zeroinitializer"),
        )  # fmt: skip

    def _file_elements(self, index: str) -> str:
        scaled = self.binary("mul", "i32", index, constant("i32", self.lanes))
        return self.binary("add", "i32", scaled, lanes(list(range(self.lanes))))

    def _relative_word(self, offset: int, half: bool) -> str:
        halves = 2 * (self.words - self.separate)
        index, inside = self._index(offset, halves if half else self.full_words)
        if not half:
            return self.gather("%file", self._file_elements(index), inside)
        odd = self.binary("and", "i32", index, constant("i32", 1))
        where = self.binary("lshr", "i32", index, constant("i32", 1))
        where = self.binary("add", "i32", where, constant("i32", self.separate))
        word = self.gather("%file", self._file_elements(where), inside)
        shift = self.binary("shl", "i32", odd, constant("i32", 4))
        return self.convert("trunc", "i32", "i16", self.binary("lshr", "i32", word, shift))

    def _set_relative(self, offset: int, value: str) -> None:
        index, inside = self._index(offset, self.full_words)
        mask = self.mask()
        if mask is not None:
            inside = self.binary("and", "i1", inside, mask)
        pointers = self._pointers("%file", self._file_elements(index))
        self.call(
            "void", f"llvm.masked.scatter.v{self.lanes}i32.v{self.lanes}p0", (self.vector, value),
            (self.vector_of("ptr"), pointers), (self.vector_of("i1"), inside),
        )  # fmt: skip

    # ---- operands ------------------------------------------------------------------------------

    def constant_word(self, number: int) -> str:
        """Read a word of the constant file (i32)."""
        at = self.value(f"getelementptr i32, ptr %constants, i64 {number}")
        return self.value(f"load i32, ptr {at}")

    def bits_of(self, operand: Operand, floating: bool = False) -> str:
        """Read an operand without its modifiers, i16 or i32.

        floating: a 32-bit constant that is read as 16 bits is converted; otherwise it is truncated.
        """
        number, half = operand.number, operand.half
        if operand.kind is Kind.IMMEDIATE:
            return constant("i16" if half else "i32", number)
        if operand.kind is Kind.REGISTER:
            return self.short(number) if half else self.word(number)
        if operand.kind is Kind.RELATIVE:
            return self._relative_word(number, half)
        if operand.kind is Kind.CONSTANT:
            if number >= layout.CONSTANT_WORDS:
                raise Unsupported(f"constant c{number >> 2} is beyond the constant file")
            word = self.broadcast("i32", self.constant_word(number))
        else:
            index, inside = self._index(number, layout.CONSTANT_WORDS)
            word = self.gather("%constants", index, inside)
        if not half:
            return word
        if floating:
            single = self.convert("bitcast", "i32", "float", word)
            rounded = self.convert("fptrunc", "float", "half", single)
            return self.convert("bitcast", "half", "i16", rounded)
        return self.convert("trunc", "i32", "i16", word)

    def source(self, operand: Operand, floating: bool = False, bitwise: bool = False) -> str:
        """Read an operand with its modifiers: i16, i32, half or float."""
        value = self.bits_of(operand, floating)
        element = "i16" if operand.half else "i32"
        if floating:
            kind = "half" if operand.half else "float"
            value = self.convert("bitcast", element, kind, value)
            if operand.absolute:
                value = self.intrinsic("fabs", kind, value)
            return self.unary("fneg", kind, value) if operand.negate else value
        if operand.absolute:
            negative = self.binary("sub", element, constant(element, 0), value)
            below = self.compare("slt", element, value, constant(element, 0))
            value = self.select(below, element, negative, value)
        if operand.negate and bitwise:
            return self.binary("xor", element, value, constant(element, -1))
        if operand.negate:
            return self.binary("sub", element, constant(element, 0), value)
        return value

    def result(self, target: Operand, turn: int, value: str, element: str) -> None:
        """Write a result of any element type at the target's width: floats are converted, integers
        truncated or zero-extended."""
        if element in ("half", "float"):
            wanted = "half" if target.half else "float"
            if element != wanted:
                operation = "fptrunc" if wanted == "half" else "fpext"
                value = self.convert(operation, element, wanted, value)
            value = self.convert("bitcast", wanted, integer_of(wanted), value)
        else:
            wanted = "i16" if target.half else "i32"
            if element != wanted:
                value = self.convert("trunc" if wanted == "i16" else "zext", element, wanted, value)
        self.store(target, turn, value)

    def store(self, target: Operand, turn: int, value: str) -> None:
        """Write a value that has the target's width, i16 or i32."""
        number = target.number + turn
        if target.number >= P0:  # predicates and the null register have no successors
            number = target.number
        if target.kind is Kind.RELATIVE:
            if target.half:
                raise Unsupported("a half register by a0.x as the destination")
            self._set_relative(number, value)
        elif target.half:
            self.set_short(number, value)
        else:
            self.set_word(number, value)


Handler = Callable[[Registers, Op, int], None]  # emits one repetition of an instruction
