"""LLVM IR text under construction: instructions, index arithmetic, addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ugpu.compiler.dtype import DType, bool_, float16
from ugpu.compiler.expression.algebra import Atom, Div, Index, Opaque, Range, Validity
from ugpu.compiler.expression.table import Table
from ugpu.compiler.expression.value import Memory, Value

_SWIZZLED = 1024  # bytes of eight rows of swizzled memory
_CHUNK_BITS = 0x70
SUFFIX = {"i1": "i1", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64", "half": "f16",
           "float": "f32", "double": "f64"}  # fmt: skip


def element_type(dtype: DType, lanes: int = 1) -> str:
    """Return the LLVM type of a value."""
    if dtype.is_float:
        width = {8: "double", 4: "float", 2: "i16", 1: "i8"}
        name = "half" if dtype is float16 else width[dtype.itemsize]
    else:
        name = "i1" if dtype is bool_ else f"i{dtype.bits}"
    return name if lanes == 1 else f"<{lanes} x {name}>"


def stored_type(dtype: DType, lanes: int = 1) -> str:
    """Return the LLVM type in memory: the value's, except that a bool is a byte."""
    return (
        element_type(dtype, lanes).replace("i1", "i8")
        if dtype is bool_
        else element_type(dtype, lanes)
    )


class Lines:
    """Instructions of a function under construction. index_type: i32 or i64. spaces: the LLVM
    pointer type of each memory space."""

    def __init__(self, index_type: str, has_fma: bool, spaces: Mapping[str, str]) -> None:
        self.index_type = index_type
        self.wave_size = 1
        self.has_fma = has_fma
        self.spaces = spaces
        self.text: list[str] = []
        self.declarations: set[str] = set()
        self.pointers: dict[str, str] = {}  # memory name (registers: name.index) to pointer
        self.numbers: dict[str, str] = {}  # parameters by value: name to the SSA value
        self.places: dict[str, int] = {}  # positions of the parameters, by name; on a GPU
        self.variables: dict[str, str] = {}  # range name to its SSA value
        self.scopes: list[dict[object, str]] = [{}]  # results valid until the scope ends
        self.shared: dict[object, str] = {}  # results valid until local memory changes
        self.private: dict[object, str] = {}  # results valid for one statement
        self.classes: dict[int, int] = {}
        self.kept: list[Value] = []  # keeps ids in `classes` and the scopes alive
        self.count = 0
        self.written: frozenset[str] = frozenset()  # parameters that the kernel stores to

    def put(self, line: str) -> None:
        self.text.append(f"  {line}")

    def new(self, instruction: str) -> str:
        self.count += 1
        self.text.append(f"  %v{self.count} = {instruction}")
        return f"%v{self.count}"

    def label(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def call(self, name: str, result: str, arguments: list[tuple[str, str]]) -> str:
        """Call an intrinsic, and declare it."""
        kinds = ", ".join(kind for kind, _ in arguments)
        self.declarations.add(f"declare {result} @{name}({kinds})")
        given = ", ".join(f"{kind} {text}" for kind, text in arguments)
        return self.new(f"call {result} @{name}({given})")

    def intrinsic(self, stem: str, kind: str, arguments: list[str]) -> str:
        if kind.startswith("<"):
            lanes, _, scalar = kind[1:-1].split()
            suffix = f"v{lanes}{SUFFIX[scalar]}"
        else:
            suffix = SUFFIX[kind]
        return self.call(f"llvm.{stem}.{suffix}", kind, [(kind, a) for a in arguments])

    # ---- indices -------------------------------------------------------------------------------

    def index(self, index: Index) -> str:
        """Return the value of an index."""
        if index.is_constant:
            return str(index.constant)
        known = self._find(index)
        if known is not None:
            return known
        kind = self.index_type
        if index.constant:
            base = self.index(Index(index.terms, 0))
            total = self.new(f"add nsw {kind} {base}, {index.constant}")
        else:
            total = self._sum(index)
        self.holder(index)[index] = total
        return total

    def holder(self, *indices: Index) -> dict[object, str]:
        """Return where results of indices are kept."""
        return self.scopes[-1]

    def _sum(self, index: Index) -> str:
        kind = self.index_type
        total = ""
        for atom, factor in sorted(index.terms, key=lambda pair: _rank(pair[0])):
            part = self._atom(atom)
            if factor not in (1, -1):
                part = self._multiple(part, abs(factor))
            if total:
                total = self.new(f"{'add' if factor > 0 else 'sub'} nsw {kind} {total}, {part}")
            else:
                total = part if factor > 0 else self.new(f"sub nsw {kind} 0, {part}")
        return total

    def _multiple(self, text: str, factor: int) -> str:
        key = ("multiple", text, factor)
        known = self._find(key)
        if known is None:
            known = self.new(f"mul nsw {self.index_type} {text}, {factor}")
            self.scopes[-1][key] = known
        return known

    def _atom(self, atom: Atom) -> str:
        if isinstance(atom, Range):
            return self.variables[atom.name]
        known = self._find(atom)
        if known is not None:
            return known
        if isinstance(atom, Opaque):
            return self.opaque(atom)
        kind, divisor = self.index_type, atom.divisor
        inner = self.index(atom.value)
        op = "div" if isinstance(atom, Div) else "rem"
        if atom.value.low >= 0:
            result = self.new(f"u{op} {kind} {inner}, {divisor}")
        else:  # LLVM rounds towards zero, index arithmetic rounds down
            rest = self.new(f"srem {kind} {inner}, {divisor}")
            negative = self.new(f"icmp slt {kind} {rest}, 0")
            if op == "rem":
                moved = self.new(f"add {kind} {rest}, {divisor}")
                result = self.new(f"select i1 {negative}, {kind} {moved}, {kind} {rest}")
            else:
                quotient = self.new(f"sdiv {kind} {inner}, {divisor}")
                down = self.new(f"sub {kind} {quotient}, 1")
                result = self.new(f"select i1 {negative}, {kind} {down}, {kind} {quotient}")
        self.holder(atom.value)[atom] = result
        return result

    def opaque(self, atom: Opaque) -> str:
        raise NotImplementedError

    def conditions(self, conditions: Validity) -> str:
        """Return an i1: all indices are at least zero."""
        known = self._find(("conditions", conditions))
        if known is not None:
            return known
        result = "true"
        for condition in conditions:
            test = self.new(f"icmp sge {self.index_type} {self.index(condition)}, 0")
            result = test if result == "true" else self.new(f"and i1 {result}, {test}")
        self.holder(*conditions)["conditions", conditions] = result
        return result

    def _find(self, key: object) -> str | None:
        for scope in (*self.scopes, self.shared, self.private):
            if key in scope:
                return scope[key]
        return None

    # ---- parameters by value -------------------------------------------------------------------

    def take(self, parameters: Sequence[Memory]) -> None:
        """Have the numbers among a kernel's parameters ready for `number`."""
        for memory in parameters:
            if memory.space == "by_value":
                kind, name = stored_type(memory.dtype), f"%{memory.name}"
                bits = 8 * memory.dtype.itemsize
                word = self.new(f"trunc i64 {name} to i{bits}") if bits < 64 else name
                same = kind == f"i{bits}"
                number = word if same else self.new(f"bitcast i{bits} {word} to {kind}")
                self.numbers[memory.name] = number

    def number(self, memory: Memory) -> str:
        """Return a number that is a parameter, or one of several."""
        if memory.which is None:
            return self.numbers[memory.name]
        texts, kind = [self.numbers[each.name] for each in memory.among], stored_type(memory.dtype)
        return self._among(texts, memory.which, kind)

    # ---- memory --------------------------------------------------------------------------------

    def address(self, memory: Memory, index: Index | str, known: Index) -> str:
        """Return a pointer to an element. `index`: the Index, or the SSA value for it."""
        if memory.space == "register":
            return self.pointers[f"{memory.name}.{known.constant}"]
        position = index if isinstance(index, str) else self.index(index)
        pointer, kind, size = self.pointer(memory), self.index_type, memory.dtype.itemsize
        space = self.spaces[memory.space]
        if kind == "i32" and memory.space == "global":
            # a 32-bit byte offset lets the GPU add it to the base in the load itself
            offset = self.new(f"mul nuw nsw i32 {position}, {size}") if size > 1 else position
            wide = self.new(f"zext nneg i32 {offset} to i64") if offset.startswith("%") else offset
            return self.new(f"getelementptr inbounds i8, {space} {pointer}, i64 {wide}")
        if memory.swizzled:
            offset = self._exchanged(known, size)
            return self.new(f"getelementptr inbounds i8, {space} {pointer}, {kind} {offset}")
        stored = stored_type(memory.dtype)
        return self.new(f"getelementptr inbounds {stored}, {space} {pointer}, {kind} {position}")

    def pointer(self, memory: Memory) -> str:
        """Return a pointer to a memory's first element; one of several is selected by bisection."""
        if memory.which is None:
            return self.pointers[memory.name]
        known = self._find(("pointer", memory.name))
        if known is None:
            known = self.scopes[-1]["pointer", memory.name] = self.among(memory, memory.which)
        return known

    def among(self, memory: Memory, which: Index) -> str:
        """Return the pointer of one of several parameters."""
        pointers = [self.pointers[each.name] for each in memory.among]
        return self._among(pointers, which, self.spaces[memory.space])

    def _among(self, texts: Sequence[str], which: Index, kind: str) -> str:
        starts: Sequence[int] = range(1, len(texts))
        atom = which.terms[0][0] if which.terms else None
        if isinstance(atom, Table) and atom.entries == tuple(range(len(texts))):
            which, starts = atom.number, atom.starts
        return self.chosen(texts, starts, self.index(which), kind)

    def chosen(self, texts: Sequence[str], starts: Sequence[int], number: str, kind: str) -> str:
        """Return texts[n], n the number of `starts` (ascending) that are at most `number`."""
        if len(set(texts)) == 1:
            return texts[0]
        half = len(texts) // 2
        left = self.chosen(texts[:half], starts[: half - 1], number, kind)
        right = self.chosen(texts[half:], starts[half:], number, kind)
        key = ("below", number, starts[half - 1])
        test = self._find(key)
        if test is None:
            test = self.new(f"icmp slt {self.index_type} {number}, {starts[half - 1]}")
            self.scopes[-1][key] = test
        return self.new(f"select i1 {test}, {kind} {left}, {kind} {right}")

    def _exchanged(self, index: Index, size: int) -> str:
        """Return the byte offset of an element of swizzled memory: bits 4-6 are changed by bits
        7-9. The part that is a multiple of 1024 bytes is unaffected, and added afterwards."""
        known = self._find(("exchanged", index))
        if known is not None:
            return known
        block = _SWIZZLED // size
        terms = tuple((atom, factor) for atom, factor in index.terms if factor % block)
        rest = Index(terms, index.constant % block)
        if rest.low < 0:
            rest = index
        kind = self.index_type
        offset = self._find(("exchanged", rest))
        if offset is None:
            offset = self.index(rest * size)
            if offset.startswith("%"):
                row = self.new(f"lshr {kind} {offset}, 3")
                chunk = self.new(f"and {kind} {row}, {_CHUNK_BITS}")
                offset = self.new(f"xor {kind} {offset}, {chunk}")
            else:
                offset = str(int(offset) ^ int(offset) >> 3 & _CHUNK_BITS)
            self.holder(rest)["exchanged", rest] = offset
        whole = index - rest
        if not whole.is_constant or whole.constant:
            offset = self.new(f"add {kind} {offset}, {self.index(whole * size)}")
            self.holder(index)["exchanged", index] = offset
        return offset


def _rank(atom: Atom) -> tuple[int, str]:
    """Return the order of summation: uniform terms of a group first, the most variable last."""
    kinds = {"group": 0, "thread": 1, "loop": 2}
    if isinstance(atom, Range):
        return kinds[atom.kind], atom.name
    inner = atom.indices() if isinstance(atom, Opaque) else (atom.value,)
    return max((kinds[r.kind] for i in inner for r in i.ranges()), default=0), atom.key


def alignment(memory: Memory, index: Index, lanes: int) -> int:
    """Return an access's sure alignment in bytes; memories start at 256 (registers: their size)."""
    size = memory.dtype.itemsize
    if memory.space == "register" or lanes == 1:
        return size if lanes == 1 else _power_of_two(size * lanes, 64)
    return max(size, _power_of_two(index.multiple() * size, 64))


def _power_of_two(number: int, most: int) -> int:
    return most if number == 0 else min(most, number & -number)
