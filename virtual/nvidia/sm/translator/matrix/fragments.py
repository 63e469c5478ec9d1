"""Products of matrices in registers: elements, sums, and tiles of eight by eight.

A register of A holds, over the 32 lanes, eight rows of a block of k. A register of B holds eight
columns of it. Two registers of C hold eight rows of eight. Elements narrower than 32 bits are split
into several such registers; the order of k within a block does not matter as long as A and B agree.
Sums are accumulated in f32, one product after another. The chip's order and rounding within one
instruction are not documented.
Source: PTX ISA 8.x, "Warp Level Matrix Instructions": the fragment layouts of mma.m16n8k*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ugpu.virtual.nvidia.sm.ptx.module import Operand, Vector
from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.runtime.resolve import PREFIX
from ugpu.virtual.nvidia.sm.translator.arithmetic.floats import (
    brain_to_float,
    float_to_half,
    half_to_float,
)
from ugpu.virtual.nvidia.sm.translator.arithmetic.minifloat import (
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    Format,
    decode,
)
from ugpu.virtual.nvidia.sm.translator.kernel import Kernel
from ugpu.virtual.nvidia.sm.translator.value import Lanes, Value, number
from ugpu.virtual.shader.text import lanes

VECTOR = "<32 x i32>"


@dataclass(frozen=True)
class Element:
    """bits: of the field of an element. work: type of the products. signed: of integers. form: of
    small floats. at: bit position of a small float in its field."""

    bits: int
    work: str
    signed: bool = False
    form: Format | None = None
    at: int = 0


ELEMENTS = {
    "f16": Element(16, "float"), "bf16": Element(16, "float"), "tf32": Element(32, "float"),
    "s8": Element(8, "i32", True), "u8": Element(8, "i32"), "s4": Element(4, "i32", True),
    "u4": Element(4, "i32"), "f64": Element(64, "double"), "b1": Element(1, "i32"),
    "e4m3": Element(8, "float", form=E4M3), "e5m2": Element(8, "float", form=E5M2),
    "e3m2": Element(8, "float", form=E3M2), "e2m3": Element(8, "float", form=E2M3),
    "e2m1": Element(8, "float", form=E2M1, at=2),  # .kind::f8f6f4: in the middle of a byte
    "e2m1 packed": Element(4, "float", form=E2M1),  # .kind::mxf4
}  # fmt: skip
_TILE = {"float": "f32", "double": "f64", "i32": "i32"}


def items(k: Kernel, operand: Operand, count: int) -> Sequence[Operand]:
    """Return the registers of an operand; raise unless there are `count`."""
    found = operand.items if isinstance(operand, Vector) else (operand,)
    if len(found) != count:
        raise k.bad(f"expected {count} registers, got {len(found)}")
    return found


def pass_in_memory(
    k: Kernel, name: str, targets: Sequence[Operand], given: Sequence[Operand | Value], vector: str
) -> None:
    """Call a function of the kernel's own module with registers that are passed in memory.

    There are so many of them that keeping all in host registers would make compilation slow.
    vector: the LLVM type of all of them.
    """
    element = vector.split()[-1].rstrip(">")
    kind = f"b{element[1:]}"
    slots = []
    for n, one in enumerate(given):
        if isinstance(one, Value):
            slots.append(k.temporary(vector, f"s{n}"))
            k.do(f"store {vector} {k.vec(one)}, ptr {slots[-1]}")
        else:
            slots.append(k.in_memory(one, kind, vector, n))
    direct = [k.written_whole(register, vector) for register in targets]
    results = [slot or k.temporary(vector, f"d{n}") for n, slot in enumerate(direct)]
    arguments = ", ".join(f"ptr {slot}" for slot in (*results, *slots))
    k.do(f'call void @"{name}"(ptr %context, {arguments})')
    for register, known, slot in zip(targets, direct, results, strict=True):
        if known is None:
            k.write(register, Value(k.value(f"load {vector}, ptr {slot}"), element, False))


def function_of(e: Lanes, name: str, counts: Mapping[str, int]) -> str:
    """Return the text of such a function. e: its body. counts: number of its parameters by stem
    (%d0, %d1, ...)."""
    names = [f"{stem}{n}" for stem, count in counts.items() for n in range(count)]
    parameters = ", ".join(f"ptr %{name}" for name in names)
    head = f'define internal void @"{name}"(ptr %context, {parameters}) noinline {{'
    return "\n".join([head, *e.lines, "  ret void", "}"])


def parts(k: Lanes, word: Value, kind: str) -> list[Value]:
    """Split a register of A or B into values to multiply."""
    element = ELEMENTS[kind]
    if kind == "f64":
        return [k.cast("bitcast", word, "double")]
    if kind == "tf32":
        kept = k.op("and", word, number("i32", ~0x1FFF))
        return [k.cast("bitcast", kept, "float")]
    found = []
    for n in range(32 // element.bits):
        if element.work == "i32":
            up = k.op("shl", word, number("i32", 32 - element.bits * (n + 1)))
            right = "ashr" if element.signed else "lshr"
            found.append(k.op(right, up, number("i32", 32 - element.bits)))
            continue
        moved = k.op("lshr", word, number("i32", element.bits * n))
        if kind == "f16":
            found.append(half_to_float(k, k.cast("trunc", moved, "i16")))
        elif kind == "bf16":
            found.append(brain_to_float(k, k.cast("trunc", moved, "i16")))
        else:
            assert element.form is not None
            moved = k.op("lshr", moved, number("i32", element.at)) if element.at else moved
            code = k.op("and", moved, number("i32", (1 << element.form.bits) - 1))
            found.append(decode(k, element.form, code))
    return found


def unpacked(k: Lanes, words: list[Value], kind: str) -> list[Value]:
    """Convert the registers of C to values."""
    if kind != "f16":
        element = {"f32": "float", "f64": "double", "s32": "i32"}[kind]
        return [k.cast("bitcast", word, element) for word in words]
    found = []
    for word in words:
        for shift in (0, 16):
            part = k.cast("trunc", k.op("lshr", word, number("i32", shift)), "i16")
            found.append(half_to_float(k, part))
    return found


def packed(k: Lanes, values: list[Value], kind: str) -> list[Value]:
    """Convert values to the registers of D."""
    if kind != "f16":
        return [k.bits_of(value) for value in values]
    found = []
    for n in range(0, len(values), 2):
        low, high = (k.cast("zext", float_to_half(k, v), "i32") for v in values[n : n + 2])
        found.append(k.op("or", low, k.op("shl", high, number("i32", 16))))
    return found


def accumulate(
    k: Lanes, work: str, a: list[list[Value]], b: list[list[Value]], halves: int, c: list[Value]
) -> list[Value]:
    """Return D for C. Both are pairs of neighbours in a row of each half."""
    size = 8 if work == "double" else 4
    wide = f"<64 x {work}>"
    woven = lanes([lane // 2 + 32 * (lane % 2) for lane in range(64)])
    found: list[Value] = []
    for half in range(halves):
        sums = k.value(f"getelementptr i8, ptr %context, i64 {layout.IO + 64 * size * half}")
        start = "zeroinitializer"
        if c:
            low, high = c[2 * half : 2 * half + 2]
            start = k.value(
                f"shufflevector <32 x {work}> {k.vec(low)}, <32 x {work}> {k.vec(high)},"
                f" <64 x i32> {woven}"
            )
        k.do(f"store {wide} {start}, ptr {sums}, align 64")
        for block, columns in enumerate(b):
            for x, y in zip(a[half + halves * block], columns, strict=True):
                kind = f"<32 x {work}>"
                k.call("void", f"{PREFIX}tile_{_TILE[work]}", ("ptr", sums), (kind, k.vec(x)),
                       (kind, k.vec(y)))  # fmt: skip
        total = k.value(f"load {wide}, ptr {sums}, align 64")
        for parity in (0, 1):
            order = lanes([2 * lane + parity for lane in range(32)])
            text = k.value(f"shufflevector {wide} {total}, {wide} poison, <32 x i32> {order}")
            found.append(Value(text, work, False))
    return found


def bit_counts(
    k: Lanes, operation: str, a: list[Value], b: list[Value], halves: int, c: list[Value]
) -> list[Value]:
    """Return D for C, in the form of `accumulate`: adds the bits set in `operation` of a and b.

    a: registers of 32 single bits, the eight rows of each half for a block of k. b: one a block.
    """
    found = []
    for half in range(halves):
        for parity in (0, 1):
            total = c[2 * half + parity]
            for block, columns in enumerate(b):
                for place in range(4):
                    # Lane (row g, pair of columns t) uses row g of a, column 2t + parity of b.
                    mine = [4 * (lane // 4) + place for lane in range(32)]
                    theirs = [4 * (2 * (lane % 4) + parity) + place for lane in range(32)]
                    x = Value(k.shuffle("i32", a[half + halves * block].text, mine), "i32", False)
                    y = Value(k.shuffle("i32", columns.text, theirs), "i32", False)
                    total = k.op("add", total, k.call_op("ctpop", k.op(operation, x, y)))
            found.append(total)
    return found
