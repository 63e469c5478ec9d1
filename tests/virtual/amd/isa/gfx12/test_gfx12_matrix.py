"""gfx12's matrix instructions and transposing loads, compiled by LLVM, against NumPy.

Where each element of a fragment is, is stated here by bits of its row and K, as the RDNA4 ISA
document (7.12.2) does; the products do not depend on the order along K, the sparse ones do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.amd.isa.gfx_corpus import compile_ir
from tests.support.amd.isa.gfx_run import Machine
from ugpu.virtual.amd.isa.core import GfxCore
from ugpu.virtual.amd.isa.targets.target import target
from ugpu.virtual.amd.shader import Ending

Place = Callable[[int], tuple[int, int]]  # K -> bits of the lane's upper part, element in the lane


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine(GfxCore(1, target=target("gfx12")))


def bit(number: int, place: int) -> int:
    return number >> place & 1


def fp8_values(mantissa: int, bias: int) -> NDArray[np.float32]:
    """The 256 values of an 8-bit float: e4m3 has a NaN and no infinity, e5m2 has both."""
    found = np.zeros(256, np.float32)
    for code in range(256):
        exponent, fraction = code >> mantissa & (1 << 7 - mantissa) - 1, code & (1 << mantissa) - 1
        size = (
            (1 + fraction / (1 << mantissa)) * 2.0 ** (exponent - bias)
            if exponent
            else fraction / (1 << mantissa) * 2.0 ** (1 - bias)
        )
        found[code] = -size if code & 0x80 else size
    return found


E4M3, E5M2 = fp8_values(3, 7), fp8_values(2, 15)


@dataclass(frozen=True)
class Element:
    """bits: of an element. values: of each code, None where the code is the number."""

    bits: int
    codes: NDArray[Any]
    values: NDArray[Any]


def element(kind: str) -> Element:
    rng = np.random.default_rng(5)
    if kind in ("fp8", "bf8"):
        table = E4M3 if kind == "fp8" else E5M2
        codes = np.array([c for c in range(256) if abs(table[c]) < 64], np.uint8)
        return Element(8, codes, table[codes])
    if kind == "f16":
        halves = rng.standard_normal(64).astype(np.float16)
        return Element(16, halves.view(np.uint16), halves.astype(np.float32))
    if kind == "bf16":
        brains = rng.standard_normal(64).astype(np.float32).view(np.uint32) >> 16
        return Element(16, brains.astype(np.uint16), (brains << 16).view(np.float32))
    bits = int(kind[-1])
    whole = np.arange(1 << bits)
    signed = np.where(whole >> (bits - 1), whole - (1 << bits), whole)
    return Element(bits, whole.astype(np.uint8), signed.astype(np.int64))


def packed(matrix: NDArray[Any], bits: int, per_lane: int, place: Place) -> NDArray[np.uint32]:
    """Put rows of codes into the words of 32 lanes. place: see Place."""
    words = np.zeros((32, bits * per_lane // 32 or 1), np.uint64)
    for row in range(16):
        for k in range(matrix.shape[1]):
            upper, number = place(k)
            at = number * bits
            words[upper * 16 + row, at // 32] |= np.uint64(int(matrix[row, k]) << at % 32)
    return words.astype(np.uint32)


def sums(matrix: NDArray[Any]) -> NDArray[Any]:
    """C or D: row r is in register r % 8 of the lanes from 16 * (r // 8) on."""
    return np.concatenate((matrix[:8].T, matrix[8:].T))


def kernel(name: str, types: Sequence[str], result: str, signed: bool) -> str:
    """The IR of one instruction on the fragments of a wave. types: of its matrices and index."""
    given = [f"{kind} %v{k}" for k, kind in enumerate(types)]
    declared = list(types)
    if signed:
        for at in (0, 2):
            given.insert(at, "i1 true")
            declared.insert(at, "i1")
        given.append("i1 false")
        declared.append("i1")
    elif result in (HALVES, BRAINS) and name.startswith("wmma"):
        given.append("i1 false")  # op_sel, for gfx11
        declared.append("i1")
    pointers = "".join(f", ptr addrspace(1) %p{k}" for k in range(len(types)))
    body = [
        f"  %q{k} = getelementptr {kind}, ptr addrspace(1) %p{k}, i32 %i\n"
        f"  %v{k} = load {kind}, ptr addrspace(1) %q{k}\n"
        for k, kind in enumerate(types)
    ]
    return f"""
declare i32 @llvm.amdgcn.workitem.id.x()
declare {result} @llvm.amdgcn.{name}({", ".join(declared)})
define amdgpu_kernel void @k(ptr addrspace(1) %out{pointers}) #0 {{
  %i = call i32 @llvm.amdgcn.workitem.id.x()
{"".join(body)}  %r = call {result} @llvm.amdgcn.{name}({", ".join(given)})
  %o = getelementptr {result}, ptr addrspace(1) %out, i32 %i
  store {result} %r, ptr addrspace(1) %o
  ret void
}}
attributes #0 = {{ "amdgpu-flat-work-group-size"="32,32" }}
"""


def run(machine: Machine, ir: str, shown: str, out: NDArray[Any], *given: NDArray[Any]) -> Any:
    compiled = compile_ir(ir, cpu="gfx1201")
    assert shown in [line.text.split()[0] for line in compiled.listing]
    outcome, views = machine.run(compiled.image, [out, *(a.ravel() for a in given)], (1, 1, 1), 32)
    assert outcome.ending is Ending.DONE, outcome
    return views[0]


def shown(name: str) -> str:
    """The mnemonic of an intrinsic, without the types at its end."""
    return "v_" + re.sub(r"(\.v\d+[if]\d+|\.i\d+)+$", "", name).replace(".", "_")


def dense_place(bits: int, depth: int) -> Place:
    if bits == 16:
        return lambda k: (bit(k, 2), (bit(k, 3) << 1 | bit(k, 1)) << 1 | bit(k, 0))
    if bits == 4 and depth == 32:
        return lambda k: (bit(k, 4), bit(k, 3) << 3 | k & 7)
    return lambda k: (bit(k, 3), k & 7)


def same(found: NDArray[Any], wanted: NDArray[Any]) -> None:
    exact = wanted.dtype.kind == "i"
    np.testing.assert_allclose(found, wanted, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-4)


HALVES, BRAINS, FLOATS, WHOLES = "<8 x half>", "<8 x i16>", "<8 x float>", "<8 x i32>"
PAIR = "<2 x i32>"
EIGHTS = [(a, b) for a in ("fp8", "bf8") for b in ("fp8", "bf8")]
# Kinds of A and B, depth, intrinsic, types of A, B and C.
DENSE = [
    ("f16", "f16", 16, "wmma.f32.16x16x16.f16.v8f32.v8f16", HALVES, HALVES, FLOATS),
    ("bf16", "bf16", 16, "wmma.f32.16x16x16.bf16.v8f32.v8i16", BRAINS, BRAINS, FLOATS),
    *((a, b, 16, f"wmma.f32.16x16x16.{a}.{b}.v8f32.v2i32", PAIR, PAIR, FLOATS) for a, b in EIGHTS),
    ("i8", "i8", 16, "wmma.i32.16x16x16.iu8.v8i32.v2i32", PAIR, PAIR, WHOLES),
    ("i4", "i4", 16, "wmma.i32.16x16x16.iu4.v8i32.i32", "i32", "i32", WHOLES),
    ("i4", "i4", 32, "wmma.i32.16x16x32.iu4.v8i32.v2i32", PAIR, PAIR, WHOLES),
]


def drawn(left: str, right: str, depth: int, whole: bool) -> tuple[Any, ...]:
    """Elements, codes of A and of B by column, values of both, and C."""
    rng = np.random.default_rng(3)
    a, b = element(left), element(right)
    x, y = (rng.integers(len(e.codes), size=(16, depth)) for e in (a, b))
    c = rng.integers(-1000, 1000, (16, 16)).astype(np.int32)
    number = np.int64 if whole else np.float64
    return a, b, x, y, c if whole else (c / 256).astype(np.float32), number


@pytest.mark.parametrize("case", DENSE, ids=[f"{c[0]}-{c[1]}-{c[2]}" for c in DENSE])
def test_dense_products(machine: Machine, case: tuple[Any, ...]) -> None:
    left, right, depth, name, *types = case
    whole = types[2] == WHOLES
    a, b, x, y, c, number = drawn(left, right, depth, whole)
    place = dense_place(a.bits, depth)
    out = run(
        machine, kernel(name, types, types[2], whole), shown(name), np.zeros(256, c.dtype),
        packed(a.codes[x], a.bits, depth // 2, place),
        packed(b.codes[y], b.bits, depth // 2, place), sums(c),
    )  # fmt: skip
    same(out.reshape(32, 8), sums(a.values[x].astype(number) @ b.values[y].astype(number).T + c))


def test_sums_of_halves_are_two_rows_to_a_register(machine: Machine) -> None:
    a, b, x, y, c, _ = drawn("f16", "f16", 16, False)
    place, c = dense_place(16, 16), c.astype(np.float16)
    name = "wmma.f16.16x16x16.f16.v8f16.v8f16"
    out = run(
        machine, kernel(name, [HALVES] * 3, HALVES, False), shown(name), np.zeros(256, np.float16),
        packed(a.codes[x], 16, 8, place), packed(b.codes[y], 16, 8, place), sums(c),
    )  # fmt: skip
    wanted = a.values[x].astype(np.float64) @ b.values[y].astype(np.float64).T + c
    np.testing.assert_allclose(out.reshape(32, 8), sums(wanted), rtol=2e-3, atol=2e-3)


# The same of sparse ones: place of K's groups of four in index and A, place of B, types.
SPARSE = [
    ("f16", "f16", 32, "swmmac.f32.16x16x32.f16.v8f32.v8f16.v16f16.i16", HALVES, "<16 x half>",
     FLOATS),
    ("bf16", "bf16", 32, "swmmac.f32.16x16x32.bf16.v8f32.v8i16.v16i16.i16", BRAINS, "<16 x i16>",
     FLOATS),
    *((a, b, 32, f"swmmac.f32.16x16x32.{a}.{b}.v8f32.v2i32.v4i32.i16", PAIR, "<4 x i32>", FLOATS)
      for a, b in EIGHTS),
    ("i8", "i8", 32, "swmmac.i32.16x16x32.iu8.v8i32.v2i32.v4i32.i16", PAIR, "<4 x i32>", WHOLES),
    ("i4", "i4", 32, "swmmac.i32.16x16x32.iu4.v8i32.i32.v2i32.i16", "i32", PAIR, WHOLES),
    ("i4", "i4", 64, "swmmac.i32.16x16x64.iu4.v8i32.v2i32.v4i32.i32", PAIR, "<4 x i32>", WHOLES),
]  # fmt: skip


def group_place(bits: int, depth: int) -> Place:
    """The place of a group of four along K: upper part of the lane, number of its entry."""
    if bits == 16:
        return lambda k: (bit(k, 3), bit(k, 4) << 1 | bit(k, 2))
    if depth == 64:
        return lambda k: (bit(k, 5), k >> 2 & 7)
    return lambda k: (bit(k, 4), k >> 2 & 3)


def wide_place(bits: int, depth: int) -> Place:
    """The place of an element of B."""
    group = group_place(bits, depth)
    return lambda k: (group(k)[0], group(k)[1] << 2 | k & 3)


@pytest.mark.parametrize("case", SPARSE, ids=[f"{c[0]}-{c[1]}-{c[2]}" for c in SPARSE])
def test_sparse_products(machine: Machine, case: tuple[Any, ...]) -> None:
    left, right, depth, name, *types = case
    whole = types[2] == WHOLES
    a, b, x, y, c, number = drawn(left, right, depth, whole)
    rng, group = np.random.default_rng(9), group_place(a.bits, depth)
    pairs = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    chosen = rng.integers(len(pairs), size=(16, depth // 4))
    dense = np.zeros((16, depth), number)
    codes = np.zeros((16, depth // 2), np.uint64)  # two elements of each group
    index = np.zeros(32, np.uint64)
    for row in range(16):
        for k in range(0, depth, 4):
            pair = pairs[chosen[row, k // 4]]
            upper, entry = group(k)
            index[16 * upper + row] |= np.uint64((pair[0] | pair[1] << 2) << 4 * entry)
            for turn, place in enumerate(pair):
                codes[row, k // 2 + turn] = a.codes[x[row, k + turn]]
                dense[row, k + place] = a.values[x[row, k + turn]]

    def narrow(half: int) -> tuple[int, int]:
        upper, entry = group(half // 2 * 4)
        return upper, 2 * entry + half % 2

    kind = f"i{name[-2:]}"
    out = run(
        machine, kernel(name, [*types, kind], types[2], whole), shown(name), np.zeros(256, c.dtype),
        packed(codes, a.bits, depth // 4, narrow),
        packed(b.codes[y], b.bits, depth // 2, wide_place(b.bits, depth)),
        sums(c), index.astype(np.uint16 if kind == "i16" else np.uint32),
    )  # fmt: skip
    same(out.reshape(32, 8), sums(dense @ b.values[y].astype(number).T + c))


def test_halves_are_transposed_in_tiles(machine: Machine) -> None:
    """B stored by rows of K becomes the fragment that a product takes."""
    tile = np.arange(256, dtype=np.uint16).reshape(16, 16)  # [K][N]
    lanes = np.arange(32)
    first = (8 * (lanes // 16) + lanes % 8) * 16 + 8 * (lanes // 8 % 2)
    out = transposed(machine, "v8i16", "<8 x i16>", tile, 2 * first).view(np.uint16).reshape(32, 8)
    for lane in range(32):
        assert list(out[lane]) == [int(tile[8 * (lane // 16) + j, lane % 16]) for j in range(8)]


def test_bytes_are_transposed_in_tiles(machine: Machine) -> None:
    tile = np.arange(256, dtype=np.uint8).reshape(16, 16)
    lanes = np.arange(32)
    first = (4 * (lanes // 8) + lanes % 4) * 16 + 8 * (lanes // 4 % 2)
    out = transposed(machine, "v2i32", "<2 x i32>", tile, first).view(np.uint8).reshape(32, 8)
    for lane in range(32):
        assert list(out[lane]) == [int(tile[8 * (lane // 16) + j, lane % 16]) for j in range(8)]


def transposed(
    machine: Machine, mark: str, kind: str, tile: NDArray[Any], offsets: NDArray[Any]
) -> NDArray[Any]:
    size = "b128" if kind == "<8 x i16>" else "b64"
    ir = f"""
declare i32 @llvm.amdgcn.workitem.id.x()
declare {kind} @llvm.amdgcn.global.load.tr.{size}.{mark}(ptr addrspace(1))
define amdgpu_kernel void @k(
    ptr addrspace(1) %out, ptr addrspace(1) %in, ptr addrspace(1) %at) #0 {{
  %i = call i32 @llvm.amdgcn.workitem.id.x()
  %q = getelementptr i32, ptr addrspace(1) %at, i32 %i
  %offset = load i32, ptr addrspace(1) %q
  %p = getelementptr i8, ptr addrspace(1) %in, i32 %offset
  %r = call {kind} @llvm.amdgcn.global.load.tr.{size}.{mark}(ptr addrspace(1) %p)
  %o = getelementptr {kind}, ptr addrspace(1) %out, i32 %i
  store {kind} %r, ptr addrspace(1) %o
  ret void
}}
attributes #0 = {{ "amdgpu-flat-work-group-size"="32,32" }}
"""
    out = np.zeros(32 * (4 if size == "b128" else 2), np.uint32)
    shown_name = f"global_load_tr_{size}"
    found: NDArray[Any] = run(machine, ir, shown_name, out, tile, offsets.astype(np.uint32))
    return found


@pytest.mark.parametrize("kind", ["fp8", "bf8"])
@pytest.mark.parametrize("number", range(4))
def test_a_byte_becomes_a_float(machine: Machine, kind: str, number: int) -> None:
    codes = np.arange(256, dtype=np.uint32)
    others = np.uint32(0x5A5A5A5A & ~(0xFF << 8 * number))
    out = converted(
        machine, f"v_cvt_f32_{kind}", "i32", "float",
        f"call float @llvm.amdgcn.cvt.f32.{kind}(i32 %x, i32 {number})",
        f"declare float @llvm.amdgcn.cvt.f32.{kind}(i32, i32)", codes << 8 * number | others,
    )  # fmt: skip
    np.testing.assert_array_equal(out, of_code(kind))


def of_code(kind: str) -> NDArray[np.float32]:
    """The value of each code, with NaN and infinity."""
    values = (E4M3 if kind == "fp8" else E5M2).copy()
    for code in range(256):
        size = code & 0x7F
        if (kind == "fp8" and size == 0x7F) or (kind == "bf8" and size > 0x7C):
            values[code] = np.nan
        elif kind == "bf8" and size == 0x7C:
            values[code] = -np.inf if code & 0x80 else np.inf
    return values


@pytest.mark.parametrize("kind", ["fp8", "bf8"])
@pytest.mark.parametrize("word", ["false", "true"])
def test_two_bytes_become_floats_and_back(machine: Machine, kind: str, word: str) -> None:
    codes = np.arange(256, dtype=np.uint32)
    shift = 16 if word == "true" else 0
    pair = (codes | (255 - codes) << 8) << shift
    out = converted(
        machine, f"v_cvt_pk_f32_{kind}", "i32", "<2 x float>",
        f"call <2 x float> @llvm.amdgcn.cvt.pk.f32.{kind}(i32 %x, i1 {word})",
        f"declare <2 x float> @llvm.amdgcn.cvt.pk.f32.{kind}(i32, i1)", pair,
    ).reshape(256, 2)  # fmt: skip
    np.testing.assert_array_equal(out, np.stack((of_code(kind), of_code(kind)[::-1]), 1))
    back = converted(
        machine, f"v_cvt_pk_{kind}_f32", "<2 x float>", "i32",
        f"call i32 @llvm.amdgcn.cvt.pk.{kind}.f32(float %a, float %b, i32 -1, i1 {word})",
        f"declare i32 @llvm.amdgcn.cvt.pk.{kind}.f32(float, float, i32, i1)", out.copy(),
    ).view(np.uint32)  # fmt: skip
    for byte, given in ((0, codes), (1, 255 - codes)):
        found = back >> shift + 8 * byte & 0xFF
        known = ~np.isnan(of_code(kind)[given])
        np.testing.assert_array_equal(found[known], given[known])
    assert set(back >> 16 - shift & 0xFFFF) == {0xFFFF}  # the other half is kept


@pytest.mark.parametrize("kind", ["fp8", "bf8"])
def test_floats_are_rounded_to_the_nearest_byte(machine: Machine, kind: str) -> None:
    table = of_code(kind)
    finite = np.sort(np.unique(np.abs(table[np.isfinite(table)])))
    middles = (finite[1:] + finite[:-1]) / 2
    rng = np.random.default_rng(1)
    random = rng.choice(finite, 512) * rng.uniform(0.9, 1.1, 512)
    near = np.concatenate((middles, middles * (1 + 1e-6), middles * (1 - 1e-6), random))
    near = near[near < finite[-1]]
    size = len(near) // 64 * 64
    values = near[:size].astype(np.float32)
    out = converted(
        machine, f"v_cvt_pk_{kind}_f32", "<2 x float>", "i32",
        f"call i32 @llvm.amdgcn.cvt.pk.{kind}.f32(float %a, float %b, i32 0, i1 false)",
        f"declare i32 @llvm.amdgcn.cvt.pk.{kind}.f32(float, float, i32, i1)", values,
    ).view(np.uint32)  # fmt: skip
    codes = np.stack((out & 0xFF, out >> 8 & 0xFF), 1).ravel()
    wide = values.astype(np.float64)
    place = np.clip(np.searchsorted(finite, wide), 1, len(finite) - 1)
    low, high = finite[place - 1].astype(np.float64), finite[place].astype(np.float64)
    even = np.where(place % 2 == 0, high, low)  # codes of positive values are their places
    wanted = np.where(wide - low < high - wide, low, np.where(wide - low > high - wide, high, even))
    np.testing.assert_array_equal(table[codes], wanted.astype(np.float32))


def converted(
    machine: Machine, shown: str, kind: str, result: str, call: str, declared: str,
    given: NDArray[Any],
) -> NDArray[np.float32]:  # fmt: skip
    """Run a conversion on each element of `given`; return the words of its results."""
    taken = "" if kind == "i32" else (
        "  %a = extractelement <2 x float> %x, i32 0\n  %b = extractelement <2 x float> %x, i32 1\n"
    )  # fmt: skip
    ir = f"""
declare i32 @llvm.amdgcn.workitem.id.x()
declare i32 @llvm.amdgcn.workgroup.id.x()
{declared}
define amdgpu_kernel void @k(ptr addrspace(1) %out, ptr addrspace(1) %in) #0 {{
  %l = call i32 @llvm.amdgcn.workitem.id.x()
  %g = call i32 @llvm.amdgcn.workgroup.id.x()
  %f = mul i32 %g, 32
  %i = add i32 %f, %l
  %q = getelementptr {kind}, ptr addrspace(1) %in, i32 %i
  %x = load {kind}, ptr addrspace(1) %q
{taken}  %r = {call}
  %o = getelementptr {result}, ptr addrspace(1) %out, i32 %i
  store {result} %r, ptr addrspace(1) %o
  ret void
}}
attributes #0 = {{ "amdgpu-flat-work-group-size"="32,32" }}
"""
    compiled = compile_ir(ir, cpu="gfx1201")
    names = [
        line.text.split()[0].removesuffix("_e64").removesuffix("_e32") for line in compiled.listing
    ]
    assert shown in names
    count = given.size // (1 if kind == "i32" else 2)
    out = np.zeros(count * (1 if result != "<2 x float>" else 2), np.float32)
    groups = (count // 32, 1, 1)
    outcome, views = machine.run(compiled.image, [out, given.ravel()], groups, 32)
    assert outcome.ending is Ending.DONE, outcome
    found: NDArray[np.float32] = views[0]
    return found
