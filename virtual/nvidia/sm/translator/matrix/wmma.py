"""wmma.load, wmma.mma and wmma.store.

The ISA does not specify which lane holds which element of a fragment, and chips differ. Here
fragments consist of those of mma.sync, side by side:

- A: blocks of 16 rows (8 for shapes with 8). A block holds all blocks of k, the upper eight rows
  before the lower.
- B: blocks of eight columns, each with all blocks of k.
- Sums: blocks of 16 rows, each with blocks of eight columns.

Neighbours along k (for sums, along the row) share a register. This is the same for both layouts in
memory, and sums of f16 and f32 have the same order. Fragments of f16 always have eight registers.
Where fewer hold the matrix, the others repeat these, and wmma.mma does not read them.
Source: PTX ISA 9.1, "Matrix multiply-accumulate operation using wmma instructions".
"""

from __future__ import annotations

from dataclasses import dataclass

from ugpu.virtual.nvidia.sm.ptx.module import Instruction, Operand
from ugpu.virtual.nvidia.sm.runtime.resolve import WIDE
from ugpu.virtual.nvidia.sm.translator.access.memory import address, load_lanes, store_lanes
from ugpu.virtual.nvidia.sm.translator.handler import Handler
from ugpu.virtual.nvidia.sm.translator.kernel import Kernel
from ugpu.virtual.nvidia.sm.translator.matrix.fragments import (
    ELEMENTS,
    VECTOR,
    accumulate,
    bit_counts,
    function_of,
    items,
    packed,
    parts,
    pass_in_memory,
    unpacked,
)
from ugpu.virtual.nvidia.sm.translator.moves import space_of
from ugpu.virtual.nvidia.sm.translator.value import Lanes, Value, number

# Sizes of m, n, k, the types of A and B, and those of sums.
_SHAPES = {
    "m16n16k16": (16, 16, 16), "m8n32k16": (8, 32, 16), "m32n8k16": (32, 8, 16),
    "m16n16k8": (16, 16, 8), "m8n8k4": (8, 8, 4), "m8n8k32": (8, 8, 32), "m8n8k128": (8, 8, 128),
}  # fmt: skip
_WIDE_SHAPES = ("m16n16k16", "m8n32k16", "m32n8k16")
_KINDS = {
    "f16": (_WIDE_SHAPES, ("f16", "f32")), "bf16": (_WIDE_SHAPES, ("f32",)),
    "s8": (_WIDE_SHAPES, ("s32",)), "u8": (_WIDE_SHAPES, ("s32",)),
    "tf32": (("m16n16k8",), ("f32",)), "f64": (("m8n8k4",), ("f64",)),
    "s4": (("m8n8k32",), ("s32",)), "u4": (("m8n8k32",), ("s32",)),
    "b1": (("m8n8k128",), ("s32",)),
}  # fmt: skip
_BITS = {kind: ELEMENTS[kind].bits for kind in _KINDS}
_SUM_BITS = {"f16": 16, "f32": 32, "s32": 32, "f64": 64}
_QUIET = ("sync", "aligned")


@dataclass(frozen=True)
class _Fragment:
    """A matrix over the registers of 32 lanes. rows, columns: of element 0 of each register that
    holds new elements, by lane. along: whether its elements are consecutive along a row. count:
    number of registers."""

    bits: int
    rows: list[list[int]]
    columns: list[list[int]]
    along: bool
    count: int

    @property
    def per(self) -> int:
        """Elements in a register."""
        return max(32 // self.bits, 1)


def _factor(shape: str, kind: str, second: bool) -> _Fragment:
    """Return the fragment of A, or of B."""
    m, n, k = _SHAPES[shape]
    per = max(32 // _BITS[kind], 1)
    blocks = [4 * per * block for block in range(k // (4 * per))]
    if second:
        outer = [(8 * column, block) for column in range(n // 8) for block in blocks]
    else:
        tall = min(m, 16)
        outer = [
            (tall * upper + 8 * half, block)
            for upper in range(m // tall) for block in blocks for half in range(tall // 8)
        ]  # fmt: skip
    across = [[start + lane // 4 for lane in range(32)] for start, _ in outer]
    along = [[start + lane % 4 * per for lane in range(32)] for _, start in outer]
    count = 8 if kind == "f16" else len(outer)
    if second:
        return _Fragment(_BITS[kind], along, across, False, count)
    return _Fragment(_BITS[kind], across, along, True, count)


def _sum(shape: str, kind: str) -> _Fragment:
    """Return the fragment of C and D."""
    m, n, _ = _SHAPES[shape]
    tall, step = min(m, 16), 2 if kind == "f16" else 1
    places = [
        (tall * upper + 8 * half, 8 * column + parity)
        for upper in range(m // tall) for column in range(n // 8) for half in range(tall // 8)
        for parity in range(0, 2, step)
    ]  # fmt: skip
    rows = [[start + lane // 4 for lane in range(32)] for start, _ in places]
    columns = [[start + lane % 4 * 2 for lane in range(32)] for _, start in places]
    return _Fragment(_SUM_BITS[kind], rows, columns, True, len(places))


# -- loads and stores ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Access:
    """Access of wmma.load or wmma.store. lead: elements from one row (column) to the next without
    an explicit stride. by_row: whether the matrix is stored by row."""

    fragment: _Fragment
    lead: int
    by_row: bool
    space: str

    @property
    def straight(self) -> bool:
        """Whether the elements of a register are consecutive in memory."""
        return self.fragment.per == 1 or self.by_row == self.fragment.along


def _access(k: Kernel, i: Instruction) -> _Access:
    """Read the modifiers. Raises NotSupported for unsupported kinds."""
    space = space_of(i.modifiers)
    rest = [m for m in i.modifiers[1:] if m not in _QUIET and m.split("::")[0] != space]
    if len(rest) != 4:
        raise k.unsupported()
    which, order, shape, kind = rest
    if (i.modifiers[0] == "store" and which != "d") or shape not in _SHAPES:
        raise k.unsupported()
    m, n, depth = _SHAPES[shape]
    lead = {"a": (depth, m), "b": (n, depth), "c": (n, m), "d": (n, m)}.get(which)
    if lead is None or order not in ("row", "col"):
        raise k.unsupported()
    if space not in ("global", "shared", ""):
        raise k.bad(f"memory must be .global or .shared, got .{space}")
    sums = which in "cd"
    found = [name for name, (shapes, results) in _KINDS.items()
             if shape in shapes and (kind in results if sums else kind == name)]  # fmt: skip
    if not found:
        raise k.unsupported()
    if not sums and _BITS[kind] < 8 and order != ("row" if which == "a" else "col"):
        raise k.unsupported("elements smaller than a byte must be along k")
    fragment = _sum(shape, kind) if sums else _factor(shape, kind, which == "b")
    return _Access(fragment, lead[order == "col"], order == "row", space)


def _addresses(k: Kernel, i: Instruction, access: _Access, at: int) -> tuple[Value, Value]:
    """Return the matrix's address and the bits from one row (column) to the next, as i64."""
    where, known = address(k, i.operands[at])
    del known
    stride: Value = number("i64", access.lead)
    if len(i.operands) == 3:
        stride = k.resize(k.source(i.operands[2], "b32"), "i64", False)
    elif len(i.operands) != 2:
        raise k.bad("expected a fragment, an address and a stride")
    return where, k.op("mul", stride, number("i64", access.fragment.bits))


def _place(k: Kernel, access: _Access, where: Value, stride: Value, register: int, element: int
           ) -> Value:  # fmt: skip
    """Return the address of one element of a register, in each lane."""
    fragment = access.fragment
    rows, columns = fragment.rows[register], fragment.columns[register]
    if fragment.along:
        columns = [n + element for n in columns]
    else:
        rows = [n + element for n in rows]
    outer, inner = (rows, columns) if access.by_row else (columns, rows)
    step = k.op("mul", k.each(outer, "i64"), stride)
    bits = k.op("add", step, k.each([fragment.bits * n for n in inner], "i64"))
    return k.varying(k.op("add", where, k.op("lshr", bits, number("i64", 3))))


def _load(k: Kernel, i: Instruction) -> None:
    access = _access(k, i)
    fragment = access.fragment
    targets = items(k, i.operands[0], fragment.count)
    where, stride = _addresses(k, i, access, 1)
    mask = k.mask()
    words = []
    for register in range(len(fragment.rows)):
        if access.straight:
            at = _place(k, access, where, stride, register, 0)
            words += load_lanes(k, access.space, at, max(fragment.bits // 8, 4), mask)
            continue
        word: Value = number("i32", 0)
        for element in range(fragment.per):
            at = _place(k, access, where, stride, register, element)
            (part,) = load_lanes(k, access.space, at, fragment.bits // 8, mask)
            low = k.op("and", part, number("i32", (1 << fragment.bits) - 1))
            word = k.op("or", word, k.op("shl", low, number("i32", fragment.bits * element)))
        words.append(word)
    for n, target in enumerate(targets):
        k.write(target, words[n % len(words)])


def _store(k: Kernel, i: Instruction) -> None:
    access = _access(k, i)
    fragment = access.fragment
    sources = items(k, i.operands[1], fragment.count)
    where, stride = _addresses(k, i, access, 0)
    mask = k.mask()
    size = fragment.bits // 8
    for register, operand in enumerate(sources):
        word = k.varying(k.source(operand, f"b{8 * max(size, 4)}"))
        if access.straight:
            at = _place(k, access, where, stride, register, 0)
            store_lanes(k, access.space, at, max(size, 4), mask, [word])
            continue
        for element in range(fragment.per):
            at = _place(k, access, where, stride, register, element)
            part = k.op("lshr", word, number("i32", 8 * size * element))
            store_lanes(k, access.space, at, size, mask, [part])


# -- products ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Product:
    """A kind of wmma.mma. kind: type of A and B. added, result: types of C and D. operation: "xor"
    or "and", for single bits."""

    shape: str
    kind: str
    added: str
    result: str
    operation: str
    saturates: bool

    @property
    def name(self) -> str:
        """Name of the native function."""
        tail = ".sat" if self.saturates else ""
        return f"wmma.{self.shape}.{self.result}.{self.kind}{self.operation}.{self.added}{tail}"


def _product(k: Kernel, i: Instruction) -> _Product:
    """Read the modifiers. Raises NotSupported for unsupported kinds."""
    flags = {m for m in i.modifiers if m in ("satfinite", "rn", "xor", "and", "popc")}
    rest = [m for m in i.modifiers[1:] if m not in _QUIET and m not in flags]
    saturates = "satfinite" in flags
    operation = next(iter(flags & {"xor", "and"}), "") if "popc" in flags else ""
    if len(rest) == 5:
        rest[4:] = ["f16", "f16", rest[4]]
    if len(rest) != 7 or not set(rest[:2]) <= {"row", "col"} or len(i.operands) != 4:
        raise k.unsupported()
    shape, result, first, second, added = rest[2:]
    shapes, results = _KINDS.get(first, ((), ()))
    if shape not in shapes or first != second or not {result, added} <= set(results):
        raise k.unsupported()
    if (operation != "") != (first == "b1") or (saturates and "s32" not in results):
        raise k.unsupported()
    if "rn" in flags and first != "f64":
        raise k.unsupported()
    if _BITS[first] < 8 and rest[:2] != ["row", "col"]:
        raise k.unsupported("elements smaller than a byte must be along k")
    return _Product(shape, first, added, result, operation, saturates)


def _multiply(k: Kernel, i: Instruction) -> None:
    product = _product(k, i)
    if product.name not in k.helpers:
        k.helpers[product.name] = _function(product, k.declarations)
    shape, kind = product.shape, product.kind
    given: list[Operand | Value] = []
    fragments = (_factor(shape, kind, False), _factor(shape, kind, True),
                 _sum(shape, product.added))  # fmt: skip
    for operand, fragment in zip(i.operands[1:], fragments, strict=True):
        given += items(k, operand, fragment.count)[: len(fragment.rows)]
    targets = items(k, i.operands[0], _sum(shape, product.result).count)
    pass_in_memory(k, product.name, targets, given, WIDE if kind == "f64" else VECTOR)


def _function(product: _Product, declarations: set[str]) -> str:
    """Return a function that multiplies fragments whose registers are passed in memory."""
    e = Lanes()
    wide = product.kind == "f64"
    vector, element = (WIDE, "i64") if wide else (VECTOR, "i32")
    counts = {
        "d": _sum(product.shape, product.result).count,
        "a": len(_factor(product.shape, product.kind, False).rows),
        "b": len(_factor(product.shape, product.kind, True).rows),
        "c": _sum(product.shape, product.added).count,
    }
    words = {
        stem: [
            Value(e.value(f"load {vector}, ptr %{stem}{n}"), element, False)
            for n in range(counts[stem])
        ]
        for stem in "abc"
    }
    m, n, _ = _SHAPES[product.shape]
    c = unpacked(e, words["c"], product.added)
    tall, columns = min(m, 16), n // 8
    halves = tall // 8
    depth_a = counts["a"] // (m // tall)
    blocks = counts["b"] // columns
    sums: list[Value] = []
    for upper in range(m // tall):
        rows = words["a"][depth_a * upper : depth_a * (upper + 1)]
        for column in range(columns):
            b = words["b"][blocks * column : blocks * (column + 1)]
            start = 2 * halves * (columns * upper + column)
            sums += _eight_columns(e, product, rows, b, halves, c[start : start + 2 * halves])
    for place, value in enumerate(packed(e, sums, product.result)):
        e.do(f"store {vector} {e.vec(value)}, ptr %d{place}")
    declarations |= e.declarations
    return function_of(e, product.name, counts)


def _eight_columns(
    e: Lanes, product: _Product, a: list[Value], b: list[Value], halves: int, c: list[Value]
) -> list[Value]:
    """Return the sums of a block of rows and eight columns, in the form of `accumulate`."""
    if product.kind == "b1":
        return bit_counts(e, product.operation, a, b, halves, c)
    first = [parts(e, word, product.kind) for word in a]
    second = [parts(e, word, product.kind) for word in b]
    work = ELEMENTS[product.kind].work
    if not product.saturates:
        return accumulate(e, work, first, second, halves, c)
    sums = accumulate(e, work, first, second, halves, [])
    return [e.call_op("sadd.sat", x, y) for x, y in zip(sums, c, strict=True)]


def _warp_matrix(k: Kernel, i: Instruction) -> None:
    kinds: dict[str, Handler] = {"load": _load, "store": _store, "mma": _multiply}
    if not i.modifiers or i.modifiers[0] not in kinds:
        raise k.unsupported()
    kinds[i.modifiers[0]](k, i)


def handlers() -> dict[str, Handler]:
    """Return the emitters by name."""
    return {"wmma": _warp_matrix}
