"""mma.sync, ldmatrix and stmatrix, with fragments laid out by the PTX ISA's formulas."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tests.support.nvidia.number_codes import decode, encode_whole, random_codes
from tests.support.nvidia.sm.sm_run import HEAD, Bench, body
from ugpu.nv.code.assemble import assemble, find_library


@dataclass(frozen=True)
class Shape:
    """regs: registers of A, B. per: elements in one."""

    name: str
    m: int
    k: int
    kind: str
    a_regs: int
    b_regs: int
    c_regs: int
    result: str = "f32"


SHAPES = [
    Shape("m16n8k16", 16, 16, "f16", 4, 2, 4), Shape("m16n8k16", 16, 16, "bf16", 4, 2, 4),
    Shape("m16n8k8", 16, 8, "f16", 2, 1, 4), Shape("m16n8k8", 16, 8, "bf16", 2, 1, 4),
    Shape("m16n8k8", 16, 8, "tf32", 4, 2, 4), Shape("m16n8k4", 16, 4, "tf32", 2, 1, 4),
    Shape("m16n8k16", 16, 16, "f16", 4, 2, 2, "f16"),
    Shape("m16n8k8", 16, 8, "f16", 2, 1, 2, "f16"),
    Shape("m16n8k16", 16, 16, "s8", 2, 1, 4, "s32"),
    Shape("m16n8k32", 16, 32, "s8", 4, 2, 4, "s32"),
    Shape("m16n8k32", 16, 32, "u8", 4, 2, 4, "s32"), Shape("m8n8k16", 8, 16, "s8", 1, 1, 2, "s32"),
    Shape("m8n8k4", 8, 4, "f64", 1, 1, 2, "f64"), Shape("m16n8k64", 16, 64, "s4", 4, 2, 4, "s32"),
    Shape("m16n8k32", 16, 32, "s4", 2, 1, 4, "s32"),
    Shape("m16n8k32", 16, 32, "e4m3", 4, 2, 4), Shape("m16n8k32", 16, 32, "e5m2", 4, 2, 4),
]  # fmt: skip
_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8, "s4": 4, "f64": 64, "e4m3": 8,
         "e5m2": 8}  # fmt: skip


def place_a(shape: Shape, lane: int, i: int) -> tuple[int, int]:
    """Row and column of element i of A in a lane: PTX ISA, matrix fragments of mma.m16n8k*."""
    group, thread = lane >> 2, lane % 4
    bits = _BITS[shape.kind]
    if shape.m == 8:
        per = 1 if bits == 64 else 32 // bits
        return group, thread * per + i
    if bits == 32:
        return (group if i % 2 == 0 else group + 8), (thread if i < 2 else thread + 4)
    per = 32 // bits
    row = group if (i // per) % 2 == 0 else group + 8
    return row, thread * per + i % per + (4 * per if i >= 2 * per else 0)


def place_b(shape: Shape, lane: int, i: int) -> tuple[int, int]:
    group, thread = lane >> 2, lane % 4
    per = max(32 // _BITS[shape.kind], 1)
    return thread * per + i % per + 4 * per * (i // per), group


def encode(kind: str, values: np.ndarray) -> np.ndarray:
    """Bits of small numbers as uint64."""
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16).astype(np.uint64)
    if kind in ("bf16", "tf32"):
        bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
        return bits >> np.uint64(16) if kind == "bf16" else bits
    if kind == "f64":
        return values.astype(np.float64).view(np.uint64)
    if kind in ("e4m3", "e5m2"):
        fraction, bias = (3, 7) if kind == "e4m3" else (2, 15)
        found = []
        for x in values.reshape(-1):
            mantissa, exponent = np.frexp(abs(x))
            part = int(mantissa * 2 * (1 << fraction)) - (1 << fraction)
            byte = 0 if x == 0 else ((int(exponent) - 1 + bias) << fraction) + part
            found.append(byte | (128 if x < 0 else 0))
        return np.array(found, np.uint64).reshape(values.shape)
    return values.astype(np.int64).view(np.uint64) & np.uint64((1 << _BITS[kind]) - 1)


def packed(shape: Shape, matrix: np.ndarray, regs: int, place) -> np.ndarray:
    bits = _BITS[shape.kind]
    per = max(32 // bits, 1)
    out = np.zeros((regs, 32), np.uint64)
    for lane in range(32):
        for i in range(regs * per):
            row, column = place(shape, lane, i)
            out[i // per, lane] |= matrix[row, column] << np.uint64(bits * (i % per))
    return out


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s.name}.{s.result}.{s.kind}")
def test_products_of_fragments(shape: Shape) -> None:
    random = np.random.default_rng(11)
    low = 0 if shape.kind == "u8" else -4
    a = random.integers(low, 4, (shape.m, shape.k)).astype(np.float64)
    b = random.integers(low, 4, (shape.k, 8)).astype(np.float64)
    c = random.integers(-50, 50, (shape.m, 8)).astype(np.float64)
    wide = shape.kind == "f64"
    register = "%rd" if wide else "%r"
    size = "b64" if wide else "b32"
    lines = ["mul.wide.u32 %rd40, %t, 8; add.s64 %rd41, %rd0, %rd40; add.s64 %rd42, %rd1, %rd40;"]
    count = shape.a_regs + shape.b_regs + shape.c_regs
    for n in range(count):
        lines.append(f"ld.global.{size} {register}{10 + n}, [%rd41+{256 * n}];")

    def names(start: int, number: int) -> str:
        return "{" + ", ".join(f"{register}{start + n}" for n in range(number)) + "}"

    if wide:  # the operands of f64 are registers of that type
        for n in range(count):
            lines.append(f"mov.b64 %d{n + 1}, %rd{10 + n};")

        def names(start: int, number: int) -> str:
            base = start - 9 if start >= 10 else start + 10
            return "{" + ", ".join(f"%d{base + n}" for n in range(number)) + "}"

    at_b, at_c = 10 + shape.a_regs, 10 + shape.a_regs + shape.b_regs
    d_start = 0
    lines.append(
        f"mma.sync.aligned.{shape.name}.row.col.{shape.result}.{shape.kind}.{shape.kind}"
        f".{shape.result} {names(d_start, shape.c_regs)}, {names(10, shape.a_regs)},"
        f" {names(at_b, shape.b_regs)}, {names(at_c, shape.c_regs)};"
    )
    for n in range(shape.c_regs):
        source = f"%d{10 + n}" if wide else f"%r{n}"
        lines.append(f"st.global.{'f64' if wide else 'b32'} [%rd42+{256 * n}], {source};")
    rows = [packed(shape, encode(shape.kind, a), shape.a_regs, place_a),
            packed(shape, encode(shape.kind, b), shape.b_regs, place_b)]  # fmt: skip
    sums = np.zeros((shape.c_regs, 32), np.uint64)
    halves = shape.result == "f16"
    kind = {"f32": "tf32", "s32": "s32", "f64": "f64", "f16": "f16"}[shape.result]
    bits = encode(kind, c) if kind != "s32" else c.astype(np.int64).view(np.uint64) & np.uint64(
        0xFFFFFFFF)  # fmt: skip
    for lane in range(32):
        for i in range(4 if shape.m == 16 else 2):
            row, column = (lane >> 2) + 8 * (i // 2), lane % 4 * 2 + i % 2
            if halves:
                sums[i // 2, lane] |= bits[row, column] << np.uint64(16 * (i % 2))
            else:
                sums[i, lane] = bits[row, column]
    bench = Bench()
    source, _ = bench.array(np.concatenate([*rows, sums]))
    target, out = bench.array(np.zeros((4, 32), np.uint64))
    bench.good(body(2, "\n".join(lines)), source, target)
    wanted = a @ b + c
    for lane in range(32):
        for i in range(4 if shape.m == 16 else 2):
            row, column = (lane >> 2) + 8 * (i // 2), lane % 4 * 2 + i % 2
            word = out[i // 2 if halves else i, lane]
            if halves:
                half = np.uint16(int(word) >> 16 * (i % 2) & 0xFFFF)
                assert float(half.view(np.float16)) == wanted[row, column]
            elif shape.result == "f32":
                assert float(np.uint32(word).view(np.float32)) == wanted[row, column]
            elif shape.result == "f64":
                assert float(word.view(np.float64)) == wanted[row, column]
            else:
                assert int(np.uint32(word).view(np.int32)) == wanted[row, column]


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_matrices_from_and_to_shared_memory(count: int, transposed: bool) -> None:
    data = np.arange(8 * 8 * count, dtype=np.uint16) + 1000
    trans = ".trans" if transposed else ""
    regs = "{" + ", ".join(f"%r{20 + n}" for n in range(count)) + "}"
    copy_in = "\n".join(
        f"ld.global.b32 %r1, [%rd41+{128 * n}]; st.shared.b32 [%r2+{128 * n}], %r1;"
        for n in range(count)
    )
    copy_out = "\n".join(
        f"st.global.b32 [%rd42+{128 * n}], %r{20 + n};\n"
        f"ld.shared.b32 %r1, [%r2+{512 + 128 * n}]; st.global.b32 [%rd42+{512 + 128 * n}], %r1;"
        for n in range(count)
    )
    text = f"""
    mul.wide.u32 %rd40, %t, 4; add.s64 %rd41, %rd0, %rd40; add.s64 %rd42, %rd1, %rd40;
    shl.b32 %r2, %t, 2;
    {copy_in}
    shl.b32 %r3, %t, 4;
    ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {regs}, [%r3];
    stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r3+512], {regs};
    {copy_out}
    """
    bench = Bench()
    source, _ = bench.array(data)
    target, out = bench.array(np.zeros(512, np.uint16))
    bench.good(body(2, text, ".shared .align 16 .b8 part[1024];"), source, target, shared=1024)
    matrices = data.reshape(count, 8, 8)
    wanted = matrices.transpose(0, 2, 1) if transposed else matrices
    assert np.array_equal(out[: 64 * count], wanted.reshape(-1))
    assert np.array_equal(out[256 : 256 + 64 * count], data)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("bits", [4, 6])
def test_small_elements_are_unpacked_to_bytes(count: int, bits: int) -> None:
    random = np.random.default_rng(bits)
    elements = random.integers(0, 1 << bits, (8 * count, 16))
    one_by_one = (elements[..., None] >> np.arange(bits) & 1).astype(np.uint8)
    rows = np.full((32, 16), 0xEE, np.uint8)  # what lies behind the elements is padding
    rows[: 8 * count, : 2 * bits] = np.packbits(
        one_by_one.reshape(8 * count, 16 * bits), axis=1, bitorder="little"
    )
    shape = "b4x16_p64" if bits == 4 else "b6x16_p32"
    regs = ", ".join(f"%r{20 + n}" for n in range(count))
    text = f"""
    mul.wide.u32 %rd40, %t, 16; add.s64 %rd41, %rd0, %rd40; shl.b32 %r2, %t, 4;
    ld.global.v2.b64 {{%rd2, %rd3}}, [%rd41]; st.shared.v2.b64 [%r2], {{%rd2, %rd3}};
    bar.warp.sync -1;
    ldmatrix.sync.aligned.m8n16.x{count}.shared.b8x16.{shape} {{{regs}}}, [%r2];
    mul.wide.u32 %rd40, %t, 4; add.s64 %rd42, %rd1, %rd40;
    {"".join(f"st.global.b32 [%rd42+{128 * n}], %r{20 + n};" for n in range(count))}
    """
    bench = Bench()
    source, _ = bench.array(rows)
    target, out = bench.array(np.zeros(512, np.uint8))
    head = ".shared .align 16 .b8 part[512];"
    bench.good(body(2, text, head), source, target, shared=512, target="sm_120a")
    assert np.array_equal(out[: 128 * count].reshape(8 * count, 16), elements)


def test_a_matrix_is_transposed_among_lanes() -> None:
    data = np.arange(64, dtype=np.uint16)
    text = """
    mul.wide.u32 %rd40, %t, 4; add.s64 %rd41, %rd0, %rd40;
    ld.global.b32 %r1, [%rd41];
    movmatrix.sync.aligned.m8n8.trans.b16 %r2, %r1;
    st.global.b32 [%rd41], %r2;
    """
    bench = Bench()
    address, out = bench.array(data)
    bench.good(body(1, text), address)
    assert np.array_equal(out.reshape(8, 8), data.reshape(8, 8).T)


# -- m8n8k4 of f16 -------------------------------------------------------------------------------


def _four_kernel(a: str, b: str, result: str, added: str) -> str:
    sums, more = 4 if result == "f16" else 8, 4 if added == "f16" else 8
    lines = ["mul.wide.u32 %rd40, %t, 4; add.s64 %rd41, %rd0, %rd40; add.s64 %rd42, %rd1, %rd40;"]
    lines += [f"ld.global.b32 %r{n + 1}, [%rd41+{128 * n}];" for n in range(4 + more)]
    d = ", ".join(f"%r{20 + n}" for n in range(sums))
    c = ", ".join(f"%r{5 + n}" for n in range(more))
    lines.append(f"mma.sync.aligned.m8n8k4.{a}.{b}.{result}.f16.f16.{added}"
                 f" {{{d}}}, {{%r1, %r2}}, {{%r3, %r4}}, {{{c}}};")  # fmt: skip
    lines += [f"st.global.b32 [%rd42+{128 * n}], %r{20 + n};" for n in range(sums)]
    return body(2, "\n".join(lines))


@pytest.mark.parametrize(
    ("a_order", "b_order", "result", "added"),
    [("row", "col", "f32", "f32"), ("col", "row", "f32", "f16"), ("row", "row", "f16", "f16"),
     ("col", "col", "f32", "f32")],
)  # fmt: skip
def test_four_products_of_eight_by_eight(
    a_order: str, b_order: str, result: str, added: str
) -> None:
    random = np.random.default_rng(3)
    a, b = random_codes(random, "f16", (4, 8, 4)), random_codes(random, "f16", (4, 4, 8))
    c = encode_whole(added, random.integers(-20, 20, (4, 8, 8)))

    def place(kind: str, lane: int, i: int) -> tuple[int, int]:
        upper = 4 if lane >= 16 else 0
        if kind == "f16":
            return lane % 4 + upper, i
        return (lane & 1) + (i & 2) + upper, (i & 4) + (lane & 2) + (i & 1)

    rows = np.zeros((4 + (4 if added == "f16" else 8), 32), np.uint64)
    for lane in range(32):
        which, upper = lane % 16 // 4, 4 if lane >= 16 else 0
        for i in range(4):
            at = (lane % 4 + upper, i) if a_order == "row" else (i + upper, lane % 4)
            rows[i // 2, lane] |= a[which][at] << np.uint64(16 * (i % 2))
            at = (lane % 4, i + upper) if b_order == "row" else (i, lane % 4 + upper)
            rows[2 + i // 2, lane] |= b[which][at] << np.uint64(16 * (i % 2))
        for i in range(8):
            code = c[which][place(added, lane, i)]
            rows[4 + (i // 2 if added == "f16" else i), lane] |= code << np.uint64(
                16 * (i % 2) if added == "f16" else 0)  # fmt: skip
    bench = Bench()
    source, _ = bench.array(rows.astype(np.uint32))
    target, out = bench.array(np.zeros((8, 32), np.uint32))
    bench.good(_four_kernel(a_order, b_order, result, added), source, target)
    wanted = decode("f16", a) @ decode("f16", b) + decode(added, c)
    for lane in range(32):
        for i in range(8):
            word = int(out[i // 2 if result == "f16" else i, lane])
            code = word >> 16 * (i % 2) & 0xFFFF if result == "f16" else word
            found = decode(result, np.array([code], np.uint64))[0]
            assert found == wanted[lane % 16 // 4][place(result, lane, i)]


def test_the_kernel_of_four_products_assembles() -> None:
    if find_library() is None:
        pytest.skip("needs the nvidia-nvjitlink package")
    text = HEAD.format(target="sm_90") + _four_kernel("row", "col", "f32", "f16")
    assert assemble(text.encode(), "sm_90")
