"""mma with sparse A (mma.sp), mma with block scales, and the four small products of m8n8k4.

Sparse products and the products of m8n8k4 are computed as lists of factors (`listed`). The others
are computed in tiles whose factors include their scale. Where the ISA shows a layout only as a
figure, the layout is that of NVIDIA's public CUTLASS: for metadata, ELayout of
mma_traits_sm120_sparse and the order in which host_reorder.h puts metadata for sm_80; for scales,
SFALayout and SFBLayout of mma_traits_sm120.

- Metadata: the chunks of a row, four bits each, lowest first. For factors of 16 and 32 bits, a
  thread of a quad holds four chunks of row g in its lower half and four of row g + 8 in its upper
  half. For smaller factors, threads alternate between eight chunks of row g and of row g + 8.
- Scales: for A, the first lane of the pair holds row g and the second row g + 8; for B, the lane
  holds column g.
Indices that the ISA calls invalid are used unchecked.
Source: PTX ISA 9.1, "Block Scaling for mma.sync", "mma.sp", "Matrix Fragments for mma.m8n8k4".
"""

from __future__ import annotations

from dataclasses import dataclass

from ugpu.virtual.nvidia.sm.ptx.module import Instruction, Integer, Operand
from ugpu.virtual.nvidia.sm.translator.arithmetic.minifloat import E4M3, decode
from ugpu.virtual.nvidia.sm.translator.kernel import Kernel
from ugpu.virtual.nvidia.sm.translator.matrix import listed
from ugpu.virtual.nvidia.sm.translator.matrix.fragments import (
    ELEMENTS,
    VECTOR,
    accumulate,
    function_of,
    items,
    packed,
    parts,
    pass_in_memory,
    unpacked,
)
from ugpu.virtual.nvidia.sm.translator.value import Lanes, Value, number

_SMALL = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
_DEPTHS = {  # depth of sparse products, by the bits of a factor
    16: {"m16n8k16": 16, "m16n8k32": 32}, 32: {"m16n8k8": 8, "m16n8k16": 16},
    8: {"m16n8k32": 32, "m16n8k64": 64}, 4: {"m16n8k64": 64, "m16n8k128": 128},
}  # fmt: skip
# By kind: the allowed numbers of scales a row by scale type, the default number, the dense depth.
_SCALES: dict[str, tuple[dict[str, tuple[int, ...]], int, int]] = {
    "mxf8f6f4": ({"ue8m0": (1,)}, 1, 32), "mxf4": ({"ue8m0": (2,)}, 2, 64),
    "mxf4nvf4": ({"ue8m0": (2, 4), "ue4m3": (4,)}, 0, 64),
}  # fmt: skip


@dataclass(frozen=True)
class _Product:
    """A kind of mma. first, second: types of A and B (keys of ELEMENTS). result: type of C and D.
    selector: which threads hold the metadata. scale: type of the scales. chunks: scales a row."""

    depth: int
    result: str
    first: str
    second: str
    sparse: bool
    saturates: bool
    selector: int = 0
    scale: str = ""
    chunks: int = 0

    @property
    def name(self) -> str:
        """Name of the native function."""
        tail = ".sat" if self.saturates else ""
        how = f".sp{self.selector}" if self.sparse else ""
        scale = f".{self.scale}.{self.chunks}" if self.scale else ""
        return f"mma{how}.k{self.depth}.{self.result}.{self.first}.{self.second}{scale}{tail}"

    @property
    def work(self) -> str:
        """LLVM type of factors and sums."""
        return "double" if self.scale else ELEMENTS[self.first].work

    @property
    def per(self) -> int:
        """Elements in a register."""
        return 32 // ELEMENTS[self.first].bits

    @property
    def b_registers(self) -> int:
        """Number of registers of B."""
        return self.depth // (4 * self.per)

    @property
    def a_registers(self) -> int:
        """Number of registers of A."""
        return self.b_registers * (1 if self.sparse else 2)

    @property
    def sums(self) -> int:
        """Number of registers of C, and of D."""
        return 2 if self.result == "f16" else 4


def wanted(i: Instruction) -> bool:
    """Return whether this module emits the mma."""
    return (
        i.modifiers[0].split("::")[0] == "sp"
        or "block_scale" in i.modifiers
        or ("m8n8k4" in i.modifiers and "f64" not in i.modifiers)
    )


def multiply(k: Kernel, i: Instruction) -> None:
    """Emit an mma of this module. Raises NotSupported for unsupported kinds."""
    if "m8n8k4" in i.modifiers:
        _four_products(k, i)
        return
    product = _product(k, i)
    if product.name not in k.helpers:
        k.helpers[product.name] = _function(product, k.declarations)
    given: list[Operand | Value] = []
    counts = (product.a_registers, product.b_registers, product.sums)
    for operand, count in zip(i.operands[1:4], counts, strict=True):
        given += items(k, operand, count)
    rest = list(i.operands[4:])
    if product.sparse:
        given.append(rest[0])
        del rest[:2]
    for _ in range(2 if product.scale else 0):
        given.append(rest[0])
        for one in items(k, rest[1], 2):
            given.append(k.resize(k.source(one, "u16"), "i32", False))
        del rest[:2]
    pass_in_memory(k, product.name, items(k, i.operands[0], product.sums), given, VECTOR)


def _product(k: Kernel, i: Instruction) -> _Product:
    rest = list(i.modifiers)
    sparse = rest[0].split("::")[0] == "sp"
    if sparse and rest[0] not in ("sp", "sp::ordered_metadata"):
        raise k.unsupported()
    kind, scales, quiet = "", 0, {"sync", "aligned", "satfinite", "block_scale"}
    for modifier in rest:
        if modifier.startswith("kind::"):
            kind = modifier[6:]
            quiet.add(modifier)
        if modifier.startswith("scale_vec::"):
            scales = {"1X": 1, "2X": 2, "4X": 4}.get(modifier[11:], -1)
            quiet.add(modifier)
    scaled = "block_scale" in rest
    rest = [m for m in rest[sparse:] if m not in quiet]
    if len(rest) != 7 + scaled or rest[1:3] != ["row", "col"]:
        raise k.unsupported()
    if len(i.operands) != 4 + 2 * sparse + 4 * scaled:
        raise k.bad("the wrong number of operands")
    shape, result, first, second, added = rest[0], *rest[3:7]
    if first not in ELEMENTS or second not in ELEMENTS or result != added:
        raise k.unsupported()
    if scaled:
        if kind not in _SCALES or result != "f32":
            raise k.unsupported()
        types, usual, dense = _SCALES[kind]
        scales = scales or usual
        if scales not in types.get(rest[7], ()):
            raise k.unsupported()
        if kind != "mxf8f6f4":
            if (first, second) != ("e2m1", "e2m1"):
                raise k.unsupported()
            first = second = "e2m1 packed"
        depth = dense * 2 if sparse else dense
        if shape != f"m16n8k{depth}":
            raise k.unsupported()
    else:
        depth = _DEPTHS.get(ELEMENTS[first].bits, {}).get(shape, 0)
    a, b = ELEMENTS[first], ELEMENTS[second]
    if not depth or (a.bits, a.work) != (b.bits, b.work) or a.work == "double" or a.bits == 1:
        raise k.unsupported()
    small = first in _SMALL or first == "e2m1 packed"
    results = ("s32",) if a.work == "i32" else ("f16", "f32") if small or first == "f16" else (
        "f32",)  # fmt: skip
    newer = not {"e3m2", "e2m3", "e2m1"}.isdisjoint((first, second))
    if result not in results or (newer and not kind) or (small and depth == 32 and sparse):
        raise k.unsupported()
    if (first == "f16") != (second == "f16") or (first == "bf16") != (second == "bf16"):
        raise k.unsupported()
    saturates = "satfinite" in i.modifiers and a.work == "i32"
    return _Product(depth, result, first, second, sparse, saturates,
                    _selector(k, i, a.bits, depth) if sparse else 0,
                    rest[7] if scaled else "", scales if scaled else 0)  # fmt: skip


def _selector(k: Kernel, i: Instruction, bits: int, depth: int) -> int:
    """Return the sparsity selector: a thread of four, a pair of two, or 0 if all hold metadata."""
    found = i.operands[5]
    most = {16: 64, 32: 32, 8: 64, 4: 128}[bits] // depth
    if not isinstance(found, Integer) or not 0 <= found.value < most:
        raise k.bad(f"expected a sparsity selector below {most}")
    return found.value


# -- places of elements --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Meta:
    """Location of the metadata of one factor, by lane. lanes: the lane that holds it. shifts: its
    first bit. columns: of the first element of its chunk. step: columns from one index to the next.
    """

    lanes: list[int]
    shifts: list[int]
    columns: list[int]
    step: int


def _meta(product: _Product, register: int, part: int) -> _Meta:
    bits = ELEMENTS[product.first].bits
    in_chunk = {32: 1, 16: 2, 8: 2, 4: 4}[bits]  # factors of a chunk
    per_lane = product.per // in_chunk
    lanes, shifts, columns = [], [], []
    half = register % 2
    for lane in range(32):
        quad, thread = lane // 4, lane % 4
        chunk = per_lane * (thread + 4 * (register // 2)) + part // in_chunk
        if bits >= 16:
            held = 2 * product.selector if _paired(product) else product.selector
            lanes.append(4 * quad + held + chunk // 4)
            shifts.append(16 * half + 4 * (chunk % 4))
        else:
            lanes.append(4 * quad + 2 * product.selector + half + 2 * (chunk // 8))
            shifts.append(4 * (chunk % 8))
        columns.append(2 * in_chunk * chunk + (part % 2 if bits == 4 else 0))
    place = part % in_chunk // (2 if bits == 4 else 1)
    shifts = [shift + (3 if bits == 32 else 2 * place) for shift in shifts]
    return _Meta(lanes, shifts, columns, 2 if bits == 4 else 1)


def _paired(product: _Product) -> bool:
    """Return whether two threads of a quad hold the metadata (factors of 16 and 32 bits)."""
    return product.depth == {16: 32, 32: 16}[ELEMENTS[product.first].bits]


def _columns(e: Lanes, product: _Product, meta: Value, register: int, part: int) -> Value:
    """Return the columns of A to which one part of a register belongs."""
    where = _meta(product, register, part)
    word = Value(e.shuffle("i32", meta.text, where.lanes), "i32", False)
    index = e.op("lshr", word, e.each(where.shifts))
    index = e.op("and", index, number("i32", 1 if product.per == 1 else 3))
    if where.step > 1:
        index = e.op("mul", index, number("i32", where.step))
    return e.op("add", e.each(where.columns), index)


def _chunk(product: _Product, columns: list[int]) -> list[int]:
    """Return the index of the scale that applies to each element in its row (column)."""
    return [column // (product.depth // product.chunks) for column in columns]


def _scaled(
    e: Lanes, product: _Product, value: Value, scales: list[Value], chunks: list[int]
) -> Value:
    """Multiply by the scales. scales: those of the lanes' rows (columns), by chunk."""
    scale = scales[0]
    for chunk in range(1, product.chunks):
        bits = sum(1 << lane for lane in range(32) if chunks[lane] == chunk)
        scale = e.choose(e.from_bits(str(bits)), scales[chunk], scale)
    return e.op("fmul", e.cast("fpext", value, "double"), scale)


def _scales(e: Lanes, product: _Product, words: list[Value], half: int | None) -> list[Value]:
    """Return the scale of each chunk, in the lanes that use it. words: the scales, the byte
    selector, the thread selector. half: the half of A; None for B."""
    data, byte, thread = words
    choices = (0, 1) if half is not None else (0, 1, 2, 3)
    found: Value | None = None
    for choice in choices:
        place = choice if half is None else 2 * choice + half
        one = Value(
            e.shuffle("i32", data.text, [4 * (lane // 4) + place for lane in range(32)]), "i32",
            False,
        )  # fmt: skip
        same = e.cmp("eq", thread, number("i32", choice))
        found = one if found is None else e.choose(same, one, found)
    assert found is not None
    start = e.op("shl", e.op("and", byte, number("i32", 3)), number("i32", 3))
    moved = e.op("lshr", found, start)
    scales = []
    for chunk in range(product.chunks):
        code = e.op("and", e.op("lshr", moved, number("i32", 8 * chunk)), number("i32", 0xFF))
        if product.scale == "ue4m3":
            code = e.op("and", code, number("i32", 0x7F))
            scales.append(e.cast("fpext", decode(e, E4M3, code), "double"))
            continue
        exponent = e.op("add", e.cast("zext", code, "i64"), number("i64", 1023 - 127))
        power = e.cast("bitcast", e.op("shl", exponent, number("i64", 52)), "double")
        nan = number("double", 0x7FF8 << 48)
        scales.append(e.choose(e.cmp("eq", code, number("i32", 0xFF)), nan, power))
    return scales


# -- the functions -------------------------------------------------------------------------------


def _loaded(e: Lanes, stem: str, count: int) -> list[Value]:
    return [Value(e.value(f"load {VECTOR}, ptr %{stem}{n}"), "i32", False) for n in range(count)]


def _function(product: _Product, declarations: set[str]) -> str:
    """Return a function that multiplies matrices whose registers are passed in memory."""
    e = Lanes()
    counts = {"d": product.sums, "a": product.a_registers, "b": product.b_registers,
              "c": product.sums, "e": int(product.sparse), "x": 3 if product.scale else 0,
              "y": 3 if product.scale else 0}  # fmt: skip
    meta = _loaded(e, "e", 1)[0] if product.sparse else None
    values, columns = _first(e, product, _loaded(e, "a", product.a_registers), meta)
    second = _second(e, product, _loaded(e, "b", product.b_registers))
    c = unpacked(e, _loaded(e, "c", product.sums), product.result)
    start = [number("i32", 0)] * 4 if product.saturates else c
    if product.scale:
        start = [e.cast("fpext", value, "double") for value in c]
    if product.sparse:
        found = _listed(e, product, values, columns, second, start)
    else:
        registers = [values[n : n + product.per] for n in range(0, len(values), product.per)]
        other = [second[n : n + product.per] for n in range(0, len(second), product.per)]
        found = accumulate(e, product.work, registers, other, 2, start)
    if product.saturates:
        found = [e.call_op("sadd.sat", x, y) for x, y in zip(found, c, strict=True)]
    if product.scale:
        found = [e.cast("fptrunc", value, "float") for value in found]
    for n, value in enumerate(packed(e, found, product.result)):
        e.do(f"store {VECTOR} {e.vec(value)}, ptr %d{n}")
    declarations |= e.declarations
    return function_of(e, product.name, counts)


def _listed(
    e: Lanes, product: _Product, values: list[Value], columns: list[Value], second: list[Value],
    start: list[Value],
) -> list[Value]:  # fmt: skip
    """Return the sums of a sparse product. columns: the column of A of each of its factors."""
    work, rows, depth, per = product.work, 16, product.depth // 2, product.per
    factors, meets = listed.room(e, work, rows * depth), listed.room(e, "i32", rows * depth)
    matrix, sums = listed.room(e, work, 8 * product.depth), listed.room(e, work, 8 * rows)

    def place_a(n: int, lane: int) -> int:
        register, part = divmod(n, per)
        slot = 4 * per * (register // 2) + per * (lane % 4) + part
        return rows * slot + 8 * (register % 2) + lane // 4

    def place_b(n: int, lane: int) -> int:
        return 8 * (4 * per * (n // per) + per * (lane % 4) + n % per) + lane // 4

    def place_c(n: int, lane: int) -> int:
        return 8 * (8 * (n // 2) + lane // 4) + 2 * (lane % 4) + n % 2

    listed.spread(e, factors, values, place_a)
    listed.spread(e, meets, columns, place_a)
    listed.spread(e, matrix, second, place_b)
    listed.spread(e, sums, [e.varying(value) for value in start], place_c)
    listed.multiply(e, work, rows, depth, factors, meets, matrix, sums)
    return listed.collect(e, sums, 4, place_c, work)


def _first(
    e: Lanes, product: _Product, words: list[Value], meta: Value | None
) -> tuple[list[Value], list[Value]]:
    """Return the factors of A and, for a sparse A, the row of B that each one multiplies."""
    values, columns = [], []
    halves = [_scales(e, product, _loaded(e, "x", 3), half) for half in (0, 1)] if (
        product.scale) else []  # fmt: skip
    for register, word in enumerate(words):
        for part, value in enumerate(parts(e, word, product.first)):
            if meta is not None:
                columns.append(_columns(e, product, meta, register, part))
            if product.scale:
                start = _meta(product, register, part).columns if meta is not None else [
                    4 * product.per * (register // 2) + product.per * (lane % 4) + part
                    for lane in range(32)
                ]  # fmt: skip
                scales = halves[register % 2]
                value = _scaled(e, product, value, scales, _chunk(product, start))
            values.append(value)
    return values, columns


def _second(e: Lanes, product: _Product, words: list[Value]) -> list[Value]:
    """Return the factors of B."""
    values = []
    scales = _scales(e, product, _loaded(e, "y", 3), None) if product.scale else []
    for register, word in enumerate(words):
        for part, value in enumerate(parts(e, word, product.second)):
            if product.scale:
                start = 4 * product.per * register + part
                rows = [start + product.per * (lane % 4) for lane in range(32)]
                value = _scaled(e, product, value, scales, _chunk(product, rows))
            values.append(value)
    return values


# -- four products at once -----------------------------------------------------------------------


def _four_products(k: Kernel, i: Instruction) -> None:
    """Emit mma.m8n8k4 of f16: lanes 4q to 4q + 3, and the lanes 16 above, multiply matrix q."""
    rest = [m for m in i.modifiers if m not in ("sync", "aligned")]
    orders = {"row", "col"}
    if len(rest) != 7 or not set(rest[1:3]) <= orders or len(i.operands) != 4:
        raise k.unsupported()
    _, first, second, result, *kinds, added = rest
    if kinds != ["f16", "f16"] or not {result, added} <= {"f16", "f32"}:
        raise k.unsupported()
    if added == "f32" != result:
        raise k.unsupported()
    name = f"mma.m8n8k4.{first}.{second}.{result}.{added}"
    counts = {"d": 4 if result == "f16" else 8, "a": 2, "b": 2, "c": 4 if added == "f16" else 8}
    if name not in k.helpers:
        e = Lanes()
        _four(e, first == "row", second == "row", counts, result, added)
        k.declarations |= e.declarations
        k.helpers[name] = function_of(e, name, counts)
    given = [one for operand, stem in zip(i.operands[1:], "abc", strict=True)
             for one in items(k, operand, counts[stem])]  # fmt: skip
    pass_in_memory(k, name, items(k, i.operands[0], counts["d"]), given, VECTOR)


def _four(
    e: Lanes, a_by_row: bool, b_by_row: bool, counts: dict[str, int], result: str, added: str
) -> None:
    rows, depth = 32, 4
    factors, meets = listed.room(e, "float", rows * depth), listed.room(e, "i32", rows * depth)
    second, sums = listed.room(e, "float", 8 * 16), listed.room(e, "float", 8 * rows)

    def across(n: int, lane: int) -> tuple[int, int]:  # a lane holds a row of A or column of B
        return lane % 4 + 4 * (lane // 16), n

    def along(n: int, lane: int) -> tuple[int, int]:
        return n + 4 * (lane // 16), lane % 4

    def place_a(n: int, lane: int) -> int:
        row, column = (across if a_by_row else along)(n, lane)
        return rows * column + 8 * (lane % 16 // 4) + row

    def place_b(n: int, lane: int) -> int:
        column, row = (along if b_by_row else across)(n, lane)
        return 8 * (4 * (lane % 16 // 4) + row) + column

    def place_of(kind: str) -> listed.Place:
        def place(n: int, lane: int) -> int:
            row, column = lane % 4, n
            if kind == "f32":
                row = (lane & 1) + (n & 2)
                column = (n & 4) + (lane & 2) + (n & 1)
            return 8 * (8 * (lane % 16 // 4) + row + 4 * (lane // 16)) + column

        return place

    a = [part for word in _loaded(e, "a", 2) for part in parts(e, word, "f16")]
    b = [part for word in _loaded(e, "b", 2) for part in parts(e, word, "f16")]
    listed.spread(e, factors, a, place_a)
    for column in range(depth):
        text = ", ".join(f"i32 {4 * (row // 8) + column}" for row in range(rows))
        at = e.value(f"getelementptr i32, ptr {meets}, i64 {rows * column}")
        e.do(f"store <{rows} x i32> <{text}>, ptr {at}, align 4")
    listed.spread(e, second, b, place_b)
    listed.spread(e, sums, unpacked(e, _loaded(e, "c", counts["c"]), added), place_of(added))
    listed.multiply(e, "float", rows, depth, factors, meets, second, sums)
    found = listed.collect(e, sums, 8, place_of(result), "float")
    for n, value in enumerate(packed(e, found, result)):
        e.do(f"store {VECTOR} {e.vec(value)}, ptr %d{n}")
