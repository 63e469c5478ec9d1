"""Matrix instructions: mma.sync, ldmatrix, stmatrix and movmatrix.

Source: PTX ISA 8.x, "Warp Level Matrix Instructions": the fragment layouts of mma.m16n8k*,
ldmatrix.
"""

from __future__ import annotations

from dataclasses import dataclass

from ugpu.virtual.nvidia.sm.ptx.module import Instruction, Operand
from ugpu.virtual.nvidia.sm.runtime.resolve import PREFIX, WIDE
from ugpu.virtual.nvidia.sm.translator.access.bulk import written
from ugpu.virtual.nvidia.sm.translator.access.memory import address, resolve
from ugpu.virtual.nvidia.sm.translator.handler import Handler, type_of
from ugpu.virtual.nvidia.sm.translator.kernel import Kernel
from ugpu.virtual.nvidia.sm.translator.matrix import sparse
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
from ugpu.virtual.nvidia.sm.translator.value import Lanes, Value, number
from ugpu.virtual.shader.text import lanes

# Rows, and the valid sizes of k by the bits of an element.
_SHAPES = {
    "m16n8k4": (16, {32: 4, 64: 4}), "m16n8k8": (16, {16: 8, 32: 8, 64: 8}),
    "m16n8k16": (16, {16: 16, 8: 16, 64: 16}), "m16n8k32": (16, {8: 32, 4: 32}),
    "m16n8k64": (16, {4: 64}), "m8n8k4": (8, {64: 4}), "m8n8k16": (8, {8: 16}),
    "m8n8k32": (8, {4: 32}), "m8n8k128": (8, {1: 128}), "m16n8k128": (16, {1: 128}),
    "m16n8k256": (16, {1: 256}),
}  # fmt: skip


@dataclass(frozen=True)
class _Product:
    """A kind of mma. first, second: types of A and B. result: type of C and D. halves: of eight
    rows. blocks: of k, one register each. operation: "xor" or "and", for single bits."""

    shape: str
    result: str
    first: str
    second: str
    halves: int
    blocks: int
    saturates: bool
    operation: str

    @property
    def name(self) -> str:
        """Name of the native function."""
        tail = ".sat" if self.saturates else ""
        return f"mma.{self.shape}.{self.result}.{self.first}.{self.second}{self.operation}{tail}"

    @property
    def sums(self) -> int:
        """Number of registers of C, and of D."""
        return self.halves if self.result == "f16" else 2 * self.halves

    @property
    def vector(self) -> str:
        """LLVM type of a register."""
        return WIDE if self.result == "f64" else VECTOR


def _multiply(k: Kernel, i: Instruction) -> None:
    """Call a function of the kernel's own module; registers are passed in memory."""
    if i.modifiers and sparse.wanted(i):
        sparse.multiply(k, i)
        return
    product = _product(k, i)
    if product.name not in k.helpers:
        k.helpers[product.name] = _function(product, k.declarations)
    given = [
        register
        for operand, count in (
            (i.operands[1], product.halves * product.blocks), (i.operands[2], product.blocks),
            (i.operands[3], product.sums),
        )
        for register in items(k, operand, count)
    ]  # fmt: skip
    pass_in_memory(k, product.name, items(k, i.operands[0], product.sums), given, product.vector)


def _product(k: Kernel, i: Instruction) -> _Product:
    """Read the modifiers. Raises NotSupported for unsupported kinds."""
    quiet = ("sync", "aligned", "satfinite", "kind::f8f6f4")
    modifiers = [m for m in i.modifiers if m not in quiet]
    operation = ""
    if modifiers[7:] in (["xor", "popc"], ["and", "popc"]):
        operation = modifiers[7]
        del modifiers[7:]
    if len(modifiers) != 7 or modifiers[1:3] != ["row", "col"] or len(i.operands) != 4:
        raise k.unsupported()
    shape = modifiers[0]
    result, first, second, added = modifiers[3:]
    if shape not in _SHAPES or first not in ELEMENTS or second not in ELEMENTS:
        raise k.unsupported()
    element, other = ELEMENTS[first], ELEMENTS[second]
    rows, sizes = _SHAPES[shape]
    depth = sizes.get(element.bits)
    if depth is None or (element.bits, element.work) != (other.bits, other.work):
        raise k.unsupported()
    if result != added or result not in _results(first):
        raise k.unsupported()
    if (element.bits == 16 and first != second) or (operation != "") != (first == "b1"):
        raise k.unsupported()
    newer = not {"e3m2", "e2m3", "e2m1"}.isdisjoint((first, second))
    if (newer or "kind::f8f6f4" in i.modifiers) and shape != "m16n8k32":
        raise k.unsupported()
    if newer and "kind::f8f6f4" not in i.modifiers:
        raise k.unsupported()
    blocks = depth // (4 * max(32 // element.bits, 1))
    saturates = "satfinite" in i.modifiers and element.work == "i32"
    return _Product(shape, result, first, second, rows // 8, blocks, saturates, operation)


def _function(product: _Product, declarations: set[str]) -> str:
    """Return a function that multiplies matrices whose registers are passed in memory."""
    e = Lanes()
    element = "i64" if product.result == "f64" else "i32"

    def load(stem: str, count: int) -> list[Value]:
        return [
            Value(e.value(f"load {product.vector}, ptr %{stem}{n}"), element, False)
            for n in range(count)
        ]

    words_a, words_b = load("a", product.halves * product.blocks), load("b", product.blocks)
    c = unpacked(e, load("c", product.sums), product.result)
    if product.operation:
        sums = bit_counts(e, product.operation, words_a, words_b, product.halves, c)
    else:
        a = [parts(e, word, product.first) for word in words_a]
        b = [parts(e, word, product.second) for word in words_b]
        work = ELEMENTS[product.first].work
        sums = accumulate(e, work, a, b, product.halves, [] if product.saturates else c)
    if product.saturates:
        sums = [e.call_op("sadd.sat", x, y) for x, y in zip(sums, c, strict=True)]
    for n, value in enumerate(packed(e, sums, product.result)):
        e.do(f"store {product.vector} {e.vec(value)}, ptr %d{n}")
    declarations |= e.declarations
    counts = {"d": product.sums, "a": product.halves * product.blocks, "b": product.blocks,
              "c": product.sums}  # fmt: skip
    return function_of(e, product.name, counts)


def _results(kind: str) -> tuple[str, ...]:
    element = ELEMENTS[kind]
    if element.work == "i32":
        return ("s32",)
    if element.work == "double":
        return ("f64",)
    return ("f32",) if kind in ("bf16", "tf32") else ("f16", "f32")


# -- matrices in shared memory -------------------------------------------------------------------


def _matrix_count(k: Kernel, i: Instruction) -> int:
    if "m8n8" not in i.modifiers or type_of(k, i) != "b16":
        raise k.unsupported()
    return next((int(m[1:]) for m in i.modifiers if m in ("x1", "x2", "x4")), 1)


def _rows(k: Kernel, i: Instruction, operand: Operand, count: int, write: bool) -> str:
    """Return the host addresses of the rows, which the first lanes specify."""
    where, _ = address(k, operand)
    space = "shared" if any(m.startswith("shared") for m in i.modifiers) else ""
    running = k.mask()
    wanted = str((1 << 8 * count) - 1)
    mask = wanted if running == "-1" else k.value(f"and i32 {running}, {wanted}")
    hosts = resolve(k, space, k.varying(where), 16, write, mask)
    if write and k.proxies:
        written(k, hosts, mask, 16)
    return hosts


def _spread(k: Kernel, hosts: str, row: list[int], offset: list[int]) -> str:
    picked = k.value(f"shufflevector {WIDE} {hosts}, {WIDE} poison, <32 x i32> {lanes(row)}")
    return k.value(f"add {WIDE} {picked}, {lanes(offset, 'i64')}")


def _places(matrix: int, transposed: bool) -> list[tuple[list[int], list[int]]]:
    """Return where each lane's elements of a matrix are: the lane that names the row, the byte."""
    each = range(32)
    if not transposed:
        return [([8 * matrix + n // 4 for n in each], [4 * (n % 4) for n in each])]
    return [
        ([8 * matrix + 2 * (n % 4) + part for n in each], [2 * (n // 4) for n in each])
        for part in (0, 1)
    ]


_UNPACKED = {"b4x16_p64": 4, "b6x16_p32": 6}  # bits of an element in shared memory


def _load_unpacked(k: Kernel, i: Instruction) -> None:
    """Load m8n16: rows of 16 elements of 4 or 6 bits and padding; each element becomes a byte.

    A group of four lanes receives a row, four neighbours each.
    """
    bits = _UNPACKED.get(i.modifiers[-1])
    if bits is None or "b8x16" not in i.modifiers or "trans" in i.modifiers:
        raise k.unsupported()
    count = next((int(m[1:]) for m in i.modifiers if m in ("x1", "x2", "x4")), 1)
    targets = items(k, i.operands[0], count)
    hosts = _rows(k, i, i.operands[1], count, False)
    for matrix, target in enumerate(targets):
        packed_word: Value = number("i32", 0)
        for byte in range(bits // 2):
            at = _spread(k, hosts, [8 * matrix + n // 4 for n in range(32)],
                         [bits // 2 * (n % 4) + byte for n in range(32)])  # fmt: skip
            text = k.call(VECTOR, f"{PREFIX}load_1", ("ptr", "%context"), (WIDE, at),
                          ("i32", "-1"))  # fmt: skip
            part = k.op("shl", Value(text, "i32", False), number("i32", 8 * byte))
            packed_word = k.op("or", packed_word, part)
        word: Value = number("i32", 0)
        for n in range(4):
            one = k.op("lshr", packed_word, number("i32", bits * n))
            one = k.op("and", one, number("i32", (1 << bits) - 1))
            word = k.op("or", word, k.op("shl", one, number("i32", 8 * n)))
        k.write(target, word)


def _load_matrix(k: Kernel, i: Instruction) -> None:
    if "m8n16" in i.modifiers:
        _load_unpacked(k, i)
        return
    count = _matrix_count(k, i)
    targets = items(k, i.operands[0], count)
    hosts = _rows(k, i, i.operands[1], count, False)
    transposed = "trans" in i.modifiers
    size = 2 if transposed else 4
    for matrix, target in enumerate(targets):
        words = []
        for row, offset in _places(matrix, transposed):
            at = _spread(k, hosts, row, offset)
            text = k.call(VECTOR, f"{PREFIX}load_{size}", ("ptr", "%context"), (WIDE, at),
                          ("i32", "-1"))  # fmt: skip
            words.append(Value(text, "i32", False))
        value = words[0]
        if transposed:
            value = k.op("or", words[0], k.op("shl", words[1], number("i32", 16)))
        k.write(target, value)


def _store_matrix(k: Kernel, i: Instruction) -> None:
    count = _matrix_count(k, i)
    sources = items(k, i.operands[1], count)
    hosts = _rows(k, i, i.operands[0], count, True)
    transposed = "trans" in i.modifiers
    size = 2 if transposed else 4
    for matrix, operand in enumerate(sources):
        word = k.varying(k.source(operand, "b32"))
        for part, (row, offset) in enumerate(_places(matrix, transposed)):
            at = _spread(k, hosts, row, offset)
            data = k.op("lshr", word, number("i32", 16)) if part else word
            k.call("void", f"{PREFIX}store_{size}", ("ptr", "%context"), (WIDE, at), ("i32", "-1"),
                   (VECTOR, k.vec(data)))  # fmt: skip


def _move_matrix(k: Kernel, i: Instruction) -> None:
    """Transpose an 8x8 matrix of 16-bit elements among the lanes."""
    if "trans" not in i.modifiers or type_of(k, i) != "b16" or len(i.operands) != 2:
        raise k.unsupported()
    word = k.vec(k.source(i.operands[1], "b32"))
    result: Value = number("i32", 0)
    for part in (0, 1):
        # Element (r, c) is in lane 4r + c/2, half c % 2; this lane needs (2(l % 4) + part, l/4).
        source = [4 * (2 * (n % 4) + part) + n // 8 for n in range(32)]
        picked = Value(k.shuffle("i32", word, source), "i32", False)
        shifts = k.each([16 * (n // 4 % 2) for n in range(32)])
        half = k.op("and", k.op("lshr", picked, shifts), number("i32", 0xFFFF))
        result = k.op("or", result, k.op("shl", half, number("i32", 16 * part)))
    k.write(i.operands[0], result)


def handlers() -> dict[str, Handler]:
    """Return the emitters by name."""
    return {
        "mma": _multiply, "ldmatrix": _load_matrix, "stmatrix": _store_matrix,
        "movmatrix": _move_matrix,
    }  # fmt: skip
