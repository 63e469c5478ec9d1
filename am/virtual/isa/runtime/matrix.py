"""Native matrix multiply-accumulate of 16x16x16 (v_wmma_*), for translated kernels.

Operands come in IO columns: A from column 0, B from column 8, C (and the result D) from column 16.
Lane l of A holds row l % 16, of B column l % 16, packed along K; D's register r holds row
2r + l / 16 and column l % 16. Source: RDNA3 ISA document, "Wave matrix multiply accumulate".
The products are summed in the order of k in f32 (the chip's own order and rounding within one
instruction are not documented), or exactly for integers.
"""

from __future__ import annotations

from dataclasses import dataclass

from am.virtual.isa.runtime import layout
from am.virtual.isa.runtime.calls import PREFIX
from hcq.emu.text import Text, constant

VECTOR = "<32 x i32>"
HALF_VECTOR = {"float": "<16 x float>", "i32": "<16 x i32>"}
A_COLUMN, B_COLUMN, C_COLUMN = 0, 8, 16


@dataclass(frozen=True)
class Shape:
    """One kind of multiplication.

    registers: of A and of B. bits: of their elements. element: "half", "bfloat" or "" (integers).
    result: element type of C and D.
    """

    name: str
    registers: int
    bits: int
    element: str
    result: str


SHAPES = (
    Shape("wmma_f32_f16", 8, 16, "half", "float"),
    Shape("wmma_f32_bf16", 8, 16, "bfloat", "float"),
    Shape("wmma_i32_iu8", 4, 8, "", "i32"),
    Shape("wmma_i32_iu4", 2, 4, "", "i32"),
)


def _column(e: Text, number: int) -> str:
    offset = layout.IO + number * layout.IO_COLUMN
    return e.value(f"getelementptr i8, ptr %context, i64 {offset}")


def _element(e: Text, shape: Shape, word: str, number: int, signed: str) -> str:
    """Extract element `number` of a register as float or i32 lanes."""
    up = constant("i32", 32 - shape.bits * (number + 1))
    down = constant("i32", 32 - shape.bits)
    raised = e.binary("shl", "i32", word, up)
    if shape.element == "bfloat":
        kept = e.binary("and", "i32", raised, constant("i32", 0xFFFF0000))
        return e.convert("bitcast", "i32", "float", kept)
    if shape.element == "half":
        narrow = e.convert("trunc", "i32", "i16", e.binary("lshr", "i32", raised, down))
        half = e.convert("bitcast", "i16", "half", narrow)
        return e.convert("fpext", "half", "float", half)
    with_sign = e.binary("ashr", "i32", raised, down)
    without = e.binary("lshr", "i32", raised, down)
    return e.value(f"select i1 {signed}, {VECTOR} {with_sign}, {VECTOR} {without}")


def _spread(e: Text, shape: Shape) -> tuple[str, str]:
    """Unpack A and B into [16][32] arrays on the stack, one vector for each k."""
    work = shape.result
    arrays = []
    for first, signed in ((A_COLUMN, "%a.signed"), (B_COLUMN, "%b.signed")):
        array = e.value(f"alloca [16 x <32 x {work}>], align 64")
        k = 0
        for register in range(shape.registers):
            word = e.value(f"load {VECTOR}, ptr {_column(e, first + register)}, align 64")
            for number in range(32 // shape.bits):
                value = _element(e, shape, word, number, signed)
                at = e.value(f"getelementptr i8, ptr {array}, i64 {128 * k}")
                e.do(f"store <32 x {work}> {value}, ptr {at}, align 64")
                k += 1
        arrays.append(array)
    return arrays[0], arrays[1]


def _product(e: Text, shape: Shape, a: str, b: str, total: str) -> str:
    kind = HALF_VECTOR[shape.result]
    if shape.result == "float":
        return e.call(kind, "llvm.fma.v16f32", (kind, a), (kind, b), (kind, total))
    return e.value(f"add {kind} {e.value(f'mul {kind} {a}, {b}')}, {total}")


def _splat(e: Text, kind: str, element: str, scalar: str) -> str:
    one = e.value(f"insertelement {kind} poison, {element} {scalar}, i32 0")
    return e.value(f"shufflevector {kind} {one}, {kind} poison, <16 x i32> zeroinitializer")


def _function(shape: Shape) -> tuple[str, set[str]]:
    e = Text()
    work, kind = shape.result, HALF_VECTOR[shape.result]
    a, b = _spread(e, shape)
    e.do("br label %rows")
    e.begin("rows")
    e.do("%r = phi i64 [ 0, %entry ], [ %r.next, %rows ]")
    e.do(f"%c.offset = mul i64 %r, {layout.IO_COLUMN}")
    e.do(f"%c.base = add i64 %c.offset, {layout.IO + C_COLUMN * layout.IO_COLUMN}")
    e.do("%c = getelementptr i8, ptr %context, i64 %c.base")
    e.do("%row8 = mul i64 %r, 8")
    for half in (0, 1):
        at = e.value(f"getelementptr i8, ptr %c, i64 {64 * half}")
        start = e.value(f"load {kind}, ptr {at}, align 64")
        total = start if work == "float" else "zeroinitializer"
        for k in range(16):
            offset = e.value(f"add i64 %row8, {128 * k + 4 * half}")
            scalar_at = e.value(f"getelementptr i8, ptr {a}, i64 {offset}")
            scalar = e.value(f"load {work}, ptr {scalar_at}, align 4")
            b_at = e.value(f"getelementptr i8, ptr {b}, i64 {128 * k + 64 * half}")
            column = e.value(f"load {kind}, ptr {b_at}, align 64")
            total = _product(e, shape, _splat(e, kind, work, scalar), column, total)
        if work == "i32":
            plain = e.value(f"add {kind} {start}, {total}")
            limited = e.call(kind, "llvm.sadd.sat.v16i32", (kind, start), (kind, total))
            total = e.value(f"select i1 %saturate, {kind} {limited}, {kind} {plain}")
        e.do(f"store {kind} {total}, ptr {at}, align 64")
    e.do("%r.next = add i64 %r, 1")
    e.do("%more = icmp ult i64 %r.next, 8")
    e.do("br i1 %more, label %rows, label %done")
    head = (
        f"define void @{PREFIX}{shape.name}(ptr %context, i1 %a.signed, i1 %b.signed,"
        " i1 %saturate) noinline {\nentry:"
    )
    return "\n".join([head, *e.lines, "done:", "  ret void", "}"]), e.declarations


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
