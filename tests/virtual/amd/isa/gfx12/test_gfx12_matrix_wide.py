"""gfx12's matrix instructions in waves of 64 lanes, whose fragments have half as many registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.amd.isa.gfx_corpus import compile_ir
from tests.support.amd.isa.gfx_run import Machine
from tests.virtual.amd.isa.gfx12.test_gfx12_matrix import (
    EIGHTS,
    bit,
    drawn,
    element,
    kernel,
    machine,
    same,
    shown,
)
from tests.virtual.amd.isa.translator.test_wave64 import WAVE64
from ugpu.virtual.amd.shader import Ending

Place = Callable[[int], tuple[int, int]]  # K -> upper two bits of the lane, element in the lane
__all__ = ["machine"]  # the fixture
HALVES, FLOATS, WHOLES = "<4 x half>", "<4 x float>", "<4 x i32>"


def packed(matrix: NDArray[Any], bits: int, per_lane: int, place: Place) -> NDArray[np.uint32]:
    words = np.zeros((64, bits * per_lane // 32), np.uint64)
    for row in range(16):
        for k in range(matrix.shape[1]):
            upper, number = place(k)
            at = number * bits
            words[upper * 16 + row, at // 32] |= np.uint64(int(matrix[row, k]) << at % 32)
    return words.astype(np.uint32)


def sums(matrix: NDArray[Any]) -> NDArray[Any]:
    """Row r is in register r % 4 of the lanes with row bits 2 and 3 above the column's."""
    found = np.zeros((64, 4), matrix.dtype)
    for row in range(16):
        upper = bit(row, 2) << 1 | bit(row, 3)
        found[16 * upper : 16 * upper + 16, row % 4] = matrix[row]
    return found


def run(machine: Machine, ir: str, name: str, dtype: Any, *given: NDArray[Any]) -> Any:
    compiled = compile_ir(ir.replace('"32,32"', '"64,64"'), WAVE64, "gfx1201")
    assert name in [line.text.split()[0] for line in compiled.listing]
    arrays = [np.zeros(256, dtype), *(a.ravel() for a in given)]
    outcome, views = machine.run(compiled.image, arrays, (1, 1, 1), 64)
    assert outcome.ending is Ending.DONE, outcome
    return views[0].reshape(64, 4)


def half_place(k: int) -> tuple[int, int]:
    return bit(k, 3) << 1 | bit(k, 2), bit(k, 1) << 1 | bit(k, 0)


def byte_place(k: int) -> tuple[int, int]:
    return bit(k, 2) << 1 | bit(k, 3), k & 3


def nibble_place(k: int) -> tuple[int, int]:
    return bit(k, 3) << 1 | bit(k, 4), k & 7


DENSE = [
    ("f16", "f16", 16, "wmma.f32.16x16x16.f16.v4f32.v4f16", HALVES, FLOATS, half_place),
    *((a, b, 16, f"wmma.f32.16x16x16.{a}.{b}.v4f32.i32", "i32", FLOATS, byte_place)
      for a, b in EIGHTS),
    ("i8", "i8", 16, "wmma.i32.16x16x16.iu8.v4i32.i32", "i32", WHOLES, byte_place),
    ("i4", "i4", 32, "wmma.i32.16x16x32.iu4.v4i32.i32", "i32", WHOLES, nibble_place),
]  # fmt: skip


@pytest.mark.parametrize("case", DENSE, ids=[f"{c[0]}-{c[1]}-{c[2]}" for c in DENSE])
def test_dense_products(machine: Machine, case: tuple[Any, ...]) -> None:
    left, right, depth, name, kind, result, place = case
    whole = result == WHOLES
    a, b, x, y, c, number = drawn(left, right, depth, whole)
    out = run(
        machine, kernel(name, [kind, kind, result], result, whole), shown(name), c.dtype,
        packed(a.codes[x], a.bits, depth // 4, place),
        packed(b.codes[y], b.bits, depth // 4, place), sums(c),
    )  # fmt: skip
    same(out, sums(a.values[x].astype(number) @ b.values[y].astype(number).T + c))


def test_sums_of_halves(machine: Machine) -> None:
    a, b, x, y, c, _ = drawn("f16", "f16", 16, False)
    name = "wmma.f16.16x16x16.f16.v4f16.v4f16"
    ir = kernel(name, [HALVES] * 3, HALVES, False).replace(f"{HALVES} %v2)", f"{HALVES} %v2, i1 0)")
    ir = ir.replace(f"({HALVES}, {HALVES}, {HALVES})", f"({HALVES}, {HALVES}, {HALVES}, i1)")
    c = c.astype(np.float16)
    out = run(
        machine, ir, shown(name), np.float16, packed(a.codes[x], 16, 4, half_place),
        packed(b.codes[y], 16, 4, half_place), sums(c),
    )  # fmt: skip
    wanted = a.values[x].astype(np.float64) @ b.values[y].astype(np.float64).T + c
    np.testing.assert_allclose(out, sums(wanted), rtol=2e-3, atol=2e-3)


def half_group(k: int) -> tuple[int, int]:
    return bit(k, 4) << 1 | bit(k, 3), bit(k, 2)


def byte_group(k: int) -> tuple[int, int]:
    return bit(k, 3) << 1 | bit(k, 4), bit(k, 2)


SPARSE = [
    ("f16", "f16", "swmmac.f32.16x16x32.f16.v4f32.v4f16.v8f16.i8", HALVES, "<8 x half>", FLOATS,
     half_group),
    ("fp8", "bf8", "swmmac.f32.16x16x32.fp8.bf8.v4f32.i32.v2i32.i8", "i32", "<2 x i32>", FLOATS,
     byte_group),
    ("i8", "i8", "swmmac.i32.16x16x32.iu8.v4i32.i32.v2i32.i8", "i32", "<2 x i32>", WHOLES,
     byte_group),
]  # fmt: skip


@pytest.mark.parametrize("case", SPARSE, ids=[c[0] for c in SPARSE])
def test_sparse_products(machine: Machine, case: tuple[Any, ...]) -> None:
    left, right, name, first, second, result, group = case
    whole = result == WHOLES
    a, b, x, y, c, number = drawn(left, right, 32, whole)
    rng = np.random.default_rng(9)
    pairs = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    dense, codes = np.zeros((16, 32), number), np.zeros((16, 16), np.uint64)
    index = np.zeros(64, np.uint8)
    for row in range(16):
        for k in range(0, 32, 4):
            pair = pairs[rng.integers(len(pairs))]
            upper, entry = group(k)
            index[16 * upper + row] |= (pair[0] | pair[1] << 2) << 4 * entry
            for turn, place in enumerate(pair):
                codes[row, k // 2 + turn] = a.codes[x[row, k + turn]]
                dense[row, k + place] = a.values[x[row, k + turn]]

    def narrow(half: int) -> tuple[int, int]:
        upper, entry = group(half // 2 * 4)
        return upper, 2 * entry + half % 2

    def wide(k: int) -> tuple[int, int]:
        upper, entry = group(k)
        return upper, 4 * entry + k % 4

    out = run(
        machine, kernel(name, [first, second, result, "i8"], result, whole), shown(name), c.dtype,
        packed(codes, a.bits, 4, narrow), packed(b.codes[y], b.bits, 8, wide), sums(c), index,
    )  # fmt: skip
    same(out, sums(dense @ b.values[y].astype(number).T + c))


@pytest.mark.parametrize(("left", "right"), EIGHTS)
def test_four_products_are_added(machine: Machine, left: str, right: str) -> None:
    """V_DOT4 of bytes; in a wave of 64 lanes, as all of this file."""
    a, b = element(left), element(right)
    rng = np.random.default_rng(7)
    x, y = (rng.integers(len(e.codes), size=(64, 4)) for e in (a, b))
    c = rng.integers(-100, 100, 64).astype(np.float32)
    name = f"dot4.f32.{left}.{right}"
    ir = kernel(name, ["i32", "i32", "float"], "float", False)
    compiled = compile_ir(ir.replace('"32,32"', '"64,64"'), WAVE64, "gfx1201")
    assert shown(name) in [line.text.split()[0] for line in compiled.listing]
    given = [np.ascontiguousarray(e.codes[k]).view(np.uint32) for e, k in ((a, x), (b, y))]
    arrays = [np.zeros(64, np.float32), *(words.ravel() for words in given), c]
    outcome, views = machine.run(compiled.image, arrays, (1, 1, 1), 64)
    assert outcome.ending is Ending.DONE, outcome
    wanted = c.astype(np.float64) + (a.values[x].astype(np.float64) * b.values[y]).sum(1)
    np.testing.assert_allclose(views[0], wanted, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("bits", [16, 8])
def test_tiles_are_transposed_by_the_lower_lanes(machine: Machine, bits: int) -> None:
    """Addresses of lanes 0 to 31, and the rows that each lane gets, as in Mesa 26.0
    (radv_nir_lower_cooperative_matrix.c): of its groups of 16 lanes, the rows from 0, 8, 4, 12."""
    lanes = np.arange(64)
    if bits == 16:
        place = (8 * (lanes // 16) + lanes % 8) * 16 + 8 * (lanes // 8 % 2)
        size, mark, kind, count = "b128", "v4i16", "<4 x i16>", 2
    else:
        place = (4 * (lanes // 8) + lanes % 4) * 16 + 8 * (lanes // 4 % 2)
        size, mark, kind, count = "b64", "i32", "i32", 1
    offsets = np.where(lanes < 32, place * bits // 8, 1 << 30)  # the other lanes have no address
    tile = np.arange(256, dtype=f"u{bits // 8}").reshape(16, 16)
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
attributes #0 = {{ "amdgpu-flat-work-group-size"="64,64" }}
"""
    compiled = compile_ir(ir, WAVE64, "gfx1201")
    names = [line.text.split()[0] for line in compiled.listing]
    assert f"global_load_tr_{size}" in names
    arrays = [np.zeros(64 * count, np.uint32), tile, offsets.astype(np.uint32)]
    outcome, views = machine.run(compiled.image, arrays, (1, 1, 1), 64)
    assert outcome.ending is Ending.DONE, outcome
    out = views[0].view(tile.dtype).reshape(64, 4)
    rows = np.array([0, 8, 4, 12])[lanes // 16]
    for number in range(4):
        np.testing.assert_array_equal(out[:, number], tile[rows + number, lanes % 16])
