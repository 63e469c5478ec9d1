"""Matrix instructions of gfx12, whose fragments do not repeat: WMMA, and SWMMAC with sparse A.

Fragments are rearranged in IO columns to the layout that the functions of `runtime.matrix` expect,
gfx11's: rows of 16 lanes, packed along K. A "part" is 32 lanes of a register; in waves of 64 lanes
the second halves of the registers follow the first ones. EXEC is ignored.
Source: RDNA4 ISA document, 7.12 (layouts, modifiers, index sets); AMD's matrix instruction
calculator 1.3.2, which agrees.
"""

from __future__ import annotations

from dataclasses import dataclass

from ugpu.virtual.amd.isa.decoder.formats import Instruction
from ugpu.virtual.amd.isa.decoder.operands import Operand
from ugpu.virtual.amd.isa.runtime.matrix import A_COLUMN, B_COLUMN, C_COLUMN
from ugpu.virtual.amd.isa.translator.access.memory import io_column
from ugpu.virtual.amd.isa.translator.arithmetic.matrix import narrowed, widened
from ugpu.virtual.amd.isa.translator.arithmetic.scalar import Handler
from ugpu.virtual.amd.isa.translator.registers import Registers, Unsupported
from ugpu.virtual.shader.lanes.every import PREFIX
from ugpu.virtual.shader.text import VECTOR, constant

_ROW = "<16 x i32>"
_FIRST = ", ".join(f"i32 {lane}" for lane in range(16))
_SECOND = ", ".join(f"i32 {lane}" for lane in range(16, 32))
_ALL = f"{_FIRST}, {_SECOND}"
# For each register that the function reads, the part and the half of its lanes (0 or 1) that hold
# it: by bits of an element and the registers of the function. The bit of K that selects the half is
# k2 of 16-bit elements, else the highest one.
_Places = tuple[tuple[int, int], ...]
_HALVES: _Places = ((0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (3, 0), (2, 1), (3, 1))


@dataclass(frozen=True)
class Kind:
    """Elements of A and B. bits: of one. places: see _HALVES. function: of runtime.matrix, with
    the type of C and D before it. parts: of A and of B, each."""

    bits: int
    places: _Places
    function: str
    parts: int


def _upper(count: int) -> _Places:
    """Return places of `count` registers, the second half of which is in the upper lanes."""
    parts = count // 2
    return tuple((number % parts, number // parts) for number in range(count))


_HALF = Kind(16, _HALVES, "f16", 4)
_BRAIN = Kind(16, _HALVES, "bf16", 4)
_BYTES = Kind(8, _upper(4), "iu8", 2)
_NIBBLES = Kind(4, _upper(2), "iu4", 1)
_MORE_NIBBLES = Kind(4, _upper(4), "iu4_32", 2)
_EIGHT = {
    f"{a}_{b}": Kind(8, _upper(4), f"{a}_{b}", 2) for a in ("fp8", "bf8") for b in ("fp8", "bf8")
}


def parts(e: Registers, operand: Operand, count: int) -> list[str]:
    """Read a fragment of `count` parts."""
    if operand.is_constant:
        return [f"splat (i32 {operand.value & 0xFFFF_FFFF})"] * count
    if not operand.is_vector:
        raise Unsupported("a matrix in scalar registers")
    each = max(1, count // len(e.passes))
    registers = [e.cut("i32", e.vector_register(operand.index + k)) for k in range(each)]
    return [registers[k % each][k // each] for k in range(count)]


def _store_parts(e: Registers, dst: Operand, values: list[str]) -> None:
    each = len(values) // len(e.passes)
    for k in range(each):
        e.store_vector(dst.index + k, e.whole("i32", values[k::each]))


def _lanes(e: Registers, part: str, upper: int) -> str:
    order = _SECOND if upper else _FIRST
    return e.value(f"shufflevector {VECTOR} {part}, {VECTOR} poison, <16 x i32> <{order}>")


def _place(e: Registers, column: int, rows: list[str], step: int) -> str:
    """Store rows of 16 lanes, `step` bytes apart; return the address of the first one."""
    start = io_column(e, column)
    for number, row in enumerate(rows):
        at = e.value(f"getelementptr i8, ptr {start}, i64 {step * number}")
        e.do(f"store {_ROW} {row}, ptr {at}, align 64")
    return start


def _factor(e: Registers, kind: Kind, values: list[str], column: int, flips: int = 0) -> str:
    rows = []
    for part, upper in kind.places:
        row = _lanes(e, values[part], upper)
        rows.append(e.value(f"xor {_ROW} {row}, splat (i32 {flips})") if flips else row)
    return _place(e, column, rows, 128)


def _modified(e: Registers, i: Instruction, values: list[str]) -> list[str]:
    """Apply NEG_HI (absolute value) and NEG of C to 32-bit floats."""
    if i.neg_hi[2]:
        values = [e.value(f"and {VECTOR} {v}, splat (i32 {0x7FFF_FFFF})") for v in values]
    if i.neg_lo[2]:
        values = [e.value(f"xor {VECTOR} {v}, splat (i32 {0x8000_0000})") for v in values]
    return values


def _sums(e: Registers, i: Instruction, operand: Operand, packed: str, floats: bool) -> str:
    """Store C as 16 rows of 32-bit elements; return their address. packed: "f16", "bf16" or ""."""
    if not packed:
        values = parts(e, operand, 8)
        values = _modified(e, i, values) if floats else values
        rows = [_lanes(e, values[row % 8], row // 8) for row in range(16)]
        return _place(e, C_COLUMN, rows, 64)
    unpacked = _modified(e, i, _unpacked(e, operand, packed))
    return _place(e, C_COLUMN, [_lanes(e, unpacked[row % 8], row // 8) for row in range(16)], 64)


def _unpacked(e: Registers, operand: Operand, packed: str) -> list[str]:
    """Read C of 16-bit elements, two rows to a register, as eight parts of 32-bit floats."""
    each = 4 // len(e.passes)
    values = [""] * 8
    for k in range(each):
        if operand.is_constant:
            word = constant("i32", (operand.value & 0xFFFF) * 0x1_0001)
        else:
            word = e.vector_register(operand.index + k)
        high = e.binary("lshr", "i32", word, constant("i32", 16))
        for half, number in ((0, word), (1, high)):
            for turn, part in enumerate(e.cut("i32", widened(e, number, packed))):
                values[2 * (k + each * turn) + half] = part
    return values


def _packed(e: Registers, values: list[str], packed: str) -> list[str]:
    """Return the registers of D of 16-bit elements."""
    each = 4 // len(e.passes)
    registers = []
    for k in range(each):
        halves = []
        for half in (0, 1):
            turns = [values[2 * (k + each * turn) + half] for turn in e.passes]
            halves.append(
                e.convert("zext", "i16", "i32", narrowed(e, e.whole("i32", turns), packed))
            )
        raised = e.binary("shl", "i32", halves[1], constant("i32", 16))
        registers.append(e.binary("or", "i32", halves[0], raised))
    return registers


def _finish(
    e: Registers,
    dst: Operand,
    packed: str,
    added: list[str] | None = None,
    *,
    saturate: bool = False,
) -> None:
    """Read D's rows from the place of C, add integers if there are any, and write D."""
    start = io_column(e, C_COLUMN)
    rows = []
    for row in range(16):
        at = e.value(f"getelementptr i8, ptr {start}, i64 {64 * row}")
        rows.append(e.value(f"load {_ROW}, ptr {at}, align 64"))
    values = [
        e.value(f"shufflevector {_ROW} {rows[k]}, {_ROW} {rows[k + 8]}, <32 x i32> <{_ALL}>")
        for k in range(8)
    ]
    for k, more in enumerate(added or ()):
        if saturate:
            values[k] = e.call(VECTOR, "llvm.sadd.sat.v32i32", (VECTOR, values[k]), (VECTOR, more))
        else:
            values[k] = e.value(f"add {VECTOR} {values[k]}, {more}")
    if packed:
        for k, register in enumerate(_packed(e, values, packed)):
            e.store_vector(dst.index + k, register)
        return
    _store_parts(e, dst, values)


def _call(e: Registers, i: Instruction, name: str, a: str, b: str, c: str, *, clamp: bool) -> None:
    signed = ["true" if "_iu" in i.name and i.neg_lo[number] else "false" for number in (0, 1)]
    e.call(
        "void", PREFIX + name, ("ptr", a), ("ptr", b), ("ptr", c), ("ptr", c),
        ("i1", signed[0]), ("i1", signed[1]), ("i1", "true" if clamp else "false"),
    )  # fmt: skip


def _flips(i: Instruction, kind: Kind, number: int) -> int:
    if kind.bits != 16:
        return 0
    return (0x8000 if i.neg_lo[number] else 0) | (0x8000_0000 if i.neg_hi[number] else 0)


def _function(kind: Kind, packed: str) -> str:
    result = "i32" if kind.function.startswith("iu") else "f32"
    return f"wmma_{result}_{packed or kind.function}"


@dataclass(frozen=True)
class Sparse:
    """SWMMAC: A has two of each four elements along K. It is two products of half the depth.

    half: one of them. a, b: parts. groups: of four elements in a lane, in the order of the index's
    4-bit entries. split: the first half of K is in the first words of all lanes, else in the lower
    lanes. whole: in waves of 64 lanes the index is where it is in waves of 32.
    """

    half: Kind
    a: int
    b: int
    groups: int
    split: bool = False
    whole: bool = False


_SPARSE = {
    "f16": Sparse(_HALF, 4, 8, 4, split=True),
    "bf16": Sparse(_BRAIN, 4, 8, 4, split=True),
    "iu8": Sparse(_BYTES, 2, 4, 4),
    "iu4": Sparse(_NIBBLES, 1, 2, 4, whole=True),
    "iu4_64": Sparse(_MORE_NIBBLES, 2, 4, 8),
    **{name: Sparse(kind, 2, 4, 4) for name, kind in _EIGHT.items()},
}


def _entries(e: Registers, i: Instruction, sparse: Sparse) -> list[str]:
    """Return the index's entry of each group, in the low bits of each lane."""
    words = e.cut("i32", e.vector_register(i.srcs[2].index))
    number = i.op_sel[0] | i.op_sel[1] << 1
    spread = e.wide and not sparse.whole
    each = sparse.groups // 2 if spread else sparse.groups  # in one register
    found = []
    for group in range(sparse.groups):
        shift = 4 * (each * number + group % each)
        if shift > 28:
            raise Unsupported(f"index set {number}")
        word = words[group // each if spread else 0]
        moved = e.value(f"lshr {VECTOR} {word}, splat (i32 {shift})")
        found.append(e.value(f"and {VECTOR} {moved}, splat (i32 15)"))
    return found


def _spread(e: Registers, sparse: Sparse, values: list[str], entries: list[str]) -> list[str]:
    """Return A with its zeros: for each group, its elements in the low 4 * bits of 64."""
    bits, wide = sparse.half.bits, "<32 x i64>"
    each = len(entries) // len(values)  # groups in a register of A
    found = []
    for group, entry in enumerate(entries):
        word = e.value(f"zext {VECTOR} {values[group // each]} to {wide}")
        places = e.value(f"zext {VECTOR} {entry} to {wide}")
        parts = []
        for number in (0, 1):
            shift = 2 * bits * (group % each) + bits * number
            element = e.value(f"lshr {wide} {word}, splat (i64 {shift})")
            element = e.value(f"and {wide} {element}, splat (i64 {(1 << bits) - 1})")
            place = e.value(f"lshr {wide} {places}, splat (i64 {2 * number})")
            place = e.value(f"and {wide} {place}, splat (i64 3)")
            place = e.value(f"mul {wide} {place}, splat (i64 {bits})")
            parts.append(e.value(f"shl {wide} {element}, {place}"))
        found.append(e.value(f"or {wide} {parts[0]}, {parts[1]}"))
    return found


def _words(e: Registers, sparse: Sparse, spread: list[str]) -> list[str]:
    """Return the 32-bit words of dense A, along K."""
    wide, bits = "<32 x i64>", sparse.half.bits
    if bits == 4:
        joined = []
        for low, high in zip(spread[::2], spread[1::2], strict=True):
            raised = e.value(f"shl {wide} {high}, splat (i64 16)")
            joined.append(e.value(f"or {wide} {low}, {raised}"))
        spread = joined
    words = [e.value(f"trunc {wide} {value} to {VECTOR}") for value in spread]
    if bits != 16:
        return words
    highs = [e.value(f"lshr {wide} {value}, splat (i64 32)") for value in spread]
    upper = [e.value(f"trunc {wide} {value} to {VECTOR}") for value in highs]
    return [word for pair in zip(words, upper, strict=True) for word in pair]


def _rows(e: Registers, sparse: Sparse, words: list[str], turn: int) -> list[str]:
    """Return the rows of one product: of a half of the words in all lanes, or of all words in a
    half of the lanes."""
    if not sparse.split:
        return [_lanes(e, word, turn) for word in words]
    count = len(words) // 2
    mine = words[count * turn : count * (turn + 1)]
    return [_lanes(e, word, upper) for upper in (0, 1) for word in mine]


def _sparse(sparse: Sparse, packed: str = "") -> Handler:
    """Emit D += A x B with sparse A."""
    function = _function(sparse.half, packed)
    floats = not sparse.half.function.startswith("iu")

    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        if floats and any((*i.neg_lo, *i.neg_hi)):
            raise Unsupported("modifiers of SWMMAC")
        entries = _entries(e, i, sparse)
        a = _words(e, sparse, _spread(e, sparse, parts(e, i.srcs[0], sparse.a), entries))
        b = parts(e, i.srcs[1], sparse.b)
        if floats:
            c, added = _sums(e, i, i.dst, packed, floats), []
        else:  # saturates once, at the end
            added = parts(e, i.dst, 8)
            c = _place(e, C_COLUMN, [f"splat (i32 {0})"] * 16, 64)
        for turn in (0, 1):
            left = _place(e, A_COLUMN, _rows(e, sparse, a, turn), 128)
            right = _place(e, B_COLUMN, _rows(e, sparse, b, turn), 128)
            _call(e, i, function, left, right, c, clamp=False)
        _finish(e, i.dst, packed, added, saturate=bool(i.clamp))

    return emit


def _dense(kind: Kind, packed: str = "") -> Handler:
    """Emit D = A x B + C. packed: the type of C and D if they have 16 bits."""
    function = _function(kind, packed)

    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        a, b = (parts(e, i.srcs[number], kind.parts) for number in (0, 1))
        c = _sums(e, i, i.srcs[2], packed, not kind.function.startswith("iu"))
        left = _factor(e, kind, a, A_COLUMN, _flips(i, kind, 0))
        right = _factor(e, kind, b, B_COLUMN, _flips(i, kind, 1))
        _call(e, i, function, left, right, c, clamp=bool(i.clamp))
        _finish(e, i.dst, packed)

    return emit


def handlers() -> dict[str, Handler]:
    """Return the emitters by instruction name; some names are gfx11's, with other layouts."""
    found = {
        "v_wmma_f32_16x16x16_f16": _dense(_HALF),
        "v_wmma_f32_16x16x16_bf16": _dense(_BRAIN),
        "v_wmma_f16_16x16x16_f16": _dense(_HALF, "f16"),
        "v_wmma_bf16_16x16x16_bf16": _dense(_BRAIN, "bf16"),
        "v_wmma_i32_16x16x16_iu8": _dense(_BYTES),
        "v_wmma_i32_16x16x16_iu4": _dense(_NIBBLES),
        "v_wmma_i32_16x16x32_iu4": _dense(_MORE_NIBBLES),
    }
    for name, kind in _EIGHT.items():
        found[f"v_wmma_f32_16x16x16_{name}"] = _dense(kind)
        found[f"v_swmmac_f32_16x16x32_{name}"] = _sparse(_SPARSE[name])
    for name in ("f16", "bf16"):
        found[f"v_swmmac_f32_16x16x32_{name}"] = _sparse(_SPARSE[name])
        found[f"v_swmmac_{name}_16x16x32_{name}"] = _sparse(_SPARSE[name], name)
    for name in ("iu8", "iu4"):
        found[f"v_swmmac_i32_16x16x32_{name}"] = _sparse(_SPARSE[name])
    found["v_swmmac_i32_16x16x64_iu4"] = _sparse(_SPARSE["iu4_64"])
    return found
