"""Native matrix multiply-accumulate of 16x16x16 (v_wmma_*), for translated kernels.

Operands are passed as addresses of consecutive registers (COLUMN bytes apart), in the wave state or
in IO columns. All operands are read before D is written, so they may overlap D.
Lane l of A holds row l % 16, lane l of B holds column l % 16, packed along K. Lanes 16..31 repeat
lanes 0..15, and only lanes 0..15 are read. D's register r holds row 2r + l / 16 and column l % 16,
so that 16 rows of 16 columns are stored one after another. Source: RDNA3 ISA document, "Wave matrix
multiply accumulate".
UNSURE: the products are summed in the order of k in f32, each rounded once with its sum. The chip's
order and rounding within one instruction are not documented; a run on the chip would settle it.
Integers are exact.
"""

from __future__ import annotations

from dataclasses import dataclass

from ugpu.virtual.shader import context
from ugpu.virtual.shader.lanes.every import PREFIX
from ugpu.virtual.shader.text import Text

ROW = "<16 x i32>"
WIDE = "<32 x float>"
COLUMN = context.IO_COLUMN
AHEAD = 2  # registers of A that are unpacked ahead
A_COLUMN, B_COLUMN, C_COLUMN = 0, 8, 16


@dataclass(frozen=True)
class Shape:
    """One kind of multiplication.

    registers: number of registers of A and of B. bits: size of their elements. element: "half",
    "bfloat", "fp8" (OCP e4m3), "bf8" (e5m2) or "" (integers); of A. right: of B, if it differs.
    result: element type of C and D.
    """

    name: str
    registers: int
    bits: int
    element: str
    result: str
    right: str = ""

    @property
    def row(self) -> str:
        """The type of a row of C and D."""
        return f"<16 x {self.result}>"


SHAPES = (
    Shape("wmma_f32_f16", 8, 16, "half", "float"),
    Shape("wmma_f32_bf16", 8, 16, "bfloat", "float"),
    Shape("wmma_i32_iu8", 4, 8, "", "i32"),
    Shape("wmma_i32_iu4", 2, 4, "", "i32"),
    Shape("wmma_i32_iu4_32", 4, 4, "", "i32"),
    *(
        Shape(f"wmma_f32_{a}_{b}", 4, 8, a, "float", b)
        for a in ("fp8", "bf8")
        for b in ("fp8", "bf8")
    ),
)


def _at(e: Text, pointer: str, offset: int) -> str:
    return e.value(f"getelementptr i8, ptr {pointer}, i64 {offset}")


def _unpacked(e: Text, shape: Shape, element: str, register: str, signed: str) -> list[str]:
    """Load 16 lanes of a register; return a vector of floats or i32 for each element of a lane."""
    if element == "half":
        wide = _widened(e, register)
        picked = [", ".join(f"i32 {2 * lane + number}" for lane in range(16)) for number in (0, 1)]
        return [
            e.value(f"shufflevector {WIDE} {wide}, {WIDE} poison, <16 x i32> <{order}>")
            for order in picked
        ]
    word = e.value(f"load {ROW}, ptr {register}, align 64")
    count = range(32 // shape.bits)
    if element in ("fp8", "bf8"):
        return [_eight_bits(e, element, word, 8 * number) for number in count]
    return [_element(e, shape, word, number, signed) for number in count]


def _widened(e: Text, register: str) -> str:
    """Load 16 lanes of a register of f16; a lane's elements stay adjacent."""
    halves = e.value(f"load <32 x half>, ptr {register}, align 64")
    return e.value(f"fpext <32 x half> {halves} to {WIDE}")


def _element(e: Text, shape: Shape, word: str, number: int, signed: str) -> str:
    up, down = _splat_constant(32 - shape.bits * (number + 1)), _splat_constant(32 - shape.bits)
    raised = e.value(f"shl {ROW} {word}, {up}")
    if shape.element == "bfloat":
        kept = e.value(f"and {ROW} {raised}, {_splat_constant(0xFFFF0000)}")
        return e.value(f"bitcast {ROW} {kept} to <16 x float>")
    with_sign = e.value(f"ashr {ROW} {raised}, {down}")
    without = e.value(f"lshr {ROW} {raised}, {down}")
    return e.value(f"select i1 {signed}, {ROW} {with_sign}, {ROW} {without}")


def _eight_bits(e: Text, element: str, word: str, shift: int) -> str:
    """Convert a byte of each lane. e5m2 is the upper half of an f16; the bits of e4m3, moved to the
    places of an f16's, are a 256th of the value, and its NaN has all bits set."""
    narrow = "<16 x i16>"
    moved = e.value(f"lshr {ROW} {word}, {_splat_constant(shift)}")
    byte = e.value(f"trunc {ROW} {moved} to {narrow}")
    raised = e.value(f"shl {narrow} {byte}, splat (i16 8)")
    if element == "fp8":
        sign = e.value(f"and {narrow} {raised}, splat (i16 {-0x8000})")
        size = e.value(
            f"and {narrow} {e.value(f'lshr {narrow} {raised}, splat (i16 1)')},"
            f" splat (i16 {0x3F80})"
        )
        raised = e.value(f"or {narrow} {sign}, {size}")
    half = e.value(f"bitcast {narrow} {raised} to <16 x half>")
    value = e.value(f"fpext <16 x half> {half} to <16 x float>")
    if element == "bf8":
        return value
    value = e.value(f"fmul <16 x float> {value}, splat (float 256.0)")
    nan = e.value(f"icmp eq {narrow} {size}, splat (i16 {0x3F80})")
    return e.value(
        f"select <16 x i1> {nan}, <16 x float> splat (float 0x7FF8000000000000),"
        f" <16 x float> {value}"
    )


def _splat_constant(bits: int) -> str:
    return f"splat (i32 {bits})"


def _splat(e: Text, kind: str, element: str, scalar: str) -> str:
    one = e.value(f"insertelement {kind} poison, {element} {scalar}, i32 0")
    return e.value(f"shufflevector {kind} {one}, {kind} poison, <16 x i32> zeroinitializer")


def _product(e: Text, shape: Shape, a: str, b: str, total: str) -> str:
    kind = shape.row
    if shape.result == "float":
        return e.call(kind, "llvm.fma.v16f32", (kind, a), (kind, b), (kind, total))
    return e.value(f"add {kind} {e.value(f'mul {kind} {a}, {b}')}, {total}")


def _spread_out(e: Text, shape: Shape, register: str, target: str) -> None:
    """Unpack a register of A into memory; `_place` gives the offsets of its elements."""
    if shape.element == "half":
        e.do(f"store {WIDE} {_widened(e, register)}, ptr {target}, align 64")
        return
    for number, value in enumerate(_unpacked(e, shape, shape.element, register, "%a.signed")):
        e.do(f"store {shape.row} {value}, ptr {_at(e, target, 64 * number)}, align 64")


def _place(shape: Shape, row: int, number: int) -> int:
    """Return the offset of a lane's element in the data stored by `_spread_out`."""
    return 4 * (2 * row + number) if shape.element == "half" else 4 * (16 * number + row)


def _indexed(e: Text, pointer: str, index: str, size: int) -> str:
    return e.value(f"getelementptr i8, ptr {pointer}, i64 {e.value(f'mul i64 {index}, {size}')}")


def _function(shape: Shape) -> tuple[str, set[str]]:
    """Define wmma_<kind>(a, b, c, d, signs, saturate).

    A is unpacked to the stack, because its elements are read one by one. It is unpacked some
    registers ahead, so that each element was written well before it is read. For each k, the
    product of an element of A and a row of B is added to each of the 16 rows of totals.
    """
    e = Text()
    kind, each = shape.row, 32 // shape.bits
    step = 64 * each
    left = e.value(f"alloca [{shape.registers + AHEAD} x [{each} x {kind}]], align 64")
    start = [e.value(f"load {kind}, ptr {_at(e, '%c', 64 * row)}, align 64") for row in range(16)]
    for register in range(AHEAD):
        _spread_out(e, shape, _at(e, "%a", COLUMN * register), _at(e, left, step * register))
    e.do("br label %registers")
    e.begin("registers")
    e.do("%r = phi i64 [ 0, %entry ], [ %r.next, %registers ]")
    totals = []
    for row in range(16):
        first = start[row] if shape.result == "float" else "zeroinitializer"
        e.do(f"%in{row} = phi {kind} [ {first}, %entry ], [ %out{row}, %registers ]")
        totals.append(f"%in{row}")
    e.do("%r.next = add i64 %r, 1")
    e.do(f"%more = icmp ult i64 %r.next, {shape.registers}")
    e.do(f"%later = add i64 %r, {AHEAD}")
    e.do(f"%inside = icmp ult i64 %later, {shape.registers}")
    e.do("%ahead = select i1 %inside, i64 %later, i64 %r")
    following = _indexed(e, "%a", "%ahead", COLUMN)
    _spread_out(e, shape, following, _indexed(e, left, "%later", step))
    here = _indexed(e, left, "%r", step)
    right = _indexed(e, "%b", "%r", COLUMN)
    for number, column in enumerate(
        _unpacked(e, shape, shape.right or shape.element, right, "%b.signed")
    ):
        for row in range(16):
            scalar_at = _at(e, here, _place(shape, row, number))
            scalar = e.value(f"load {shape.result}, ptr {scalar_at}, align 4")
            spread = _splat(e, kind, shape.result, scalar)
            totals[row] = _product(e, shape, spread, column, totals[row])
    for row in range(16):
        e.do(f"%out{row} = freeze {kind} {totals[row]}")
    e.do("br i1 %more, label %registers, label %done")
    e.begin("done")
    for row in range(16):
        total = f"%out{row}"
        if shape.result == "i32":
            plain = e.value(f"add {kind} {start[row]}, {total}")
            limited = e.call(kind, "llvm.sadd.sat.v16i32", (kind, start[row]), (kind, total))
            total = e.value(f"select i1 %saturate, {kind} {limited}, {kind} {plain}")
        e.do(f"store {kind} {total}, ptr {_at(e, '%d', 64 * row)}, align 64")
    head = (
        f"define void @{PREFIX}{shape.name}(ptr %a, ptr %b, ptr %c, ptr %d, i1 %a.signed,"
        " i1 %b.signed, i1 %saturate) noinline {\nentry:"
    )
    return "\n".join([head, *e.lines, "  ret void", "}"]), e.declarations


def matrix_ir() -> tuple[str, set[str]]:
    """Return the IR of the functions and the declarations they need."""
    parts: list[str] = []
    declarations: set[str] = set()
    for shape in SHAPES:
        text, needed = _function(shape)
        parts.append(text)
        declarations |= needed
    return "\n".join(parts), declarations


def names() -> list[str]:
    """Return the functions that kernels may call."""
    return [PREFIX + shape.name for shape in SHAPES]
