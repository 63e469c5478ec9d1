"""gfx12: NaNs in minima and maxima, the sine of minus zero, denormals of f32 and of f64.

Source: RDNA4 ISA document, V_MIN_NUM_F32, V_MINIMUM_F32, V_SIN_F32; LLVM AMDGPUUsage,
FLOAT_DENORM_MODE_32 and _16_64. There is no IEEE mode (GFX12 has no such bit in RSRC1).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.amd.isa.gfx_corpus import compile_ir
from tests.support.amd.isa.gfx_run import Machine
from ugpu.virtual.amd.isa.core import GfxCore
from ugpu.virtual.amd.isa.targets.target import target
from ugpu.virtual.amd.shader import Ending

SIGNALLING, QUIET, NEGATIVE = 0x7FA0_0001, 0x7FC0_0002, 0xFFA0_0003
ONE, TWO, PLUS, MINUS = 0x3F80_0000, 0x4000_0000, 0, 0x8000_0000
NANS = {SIGNALLING, QUIET, NEGATIVE}


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    made = Machine(GfxCore(1, target=target("gfx12")))
    yield made
    made.core.close()


def run(machine: Machine, ir: str, names: tuple[str, ...], *arrays: NDArray[Any]) -> NDArray[Any]:
    """Run a kernel of one wave that has these instructions; return its first array."""
    compiled = compile_ir(ir, cpu="gfx1201")
    shown = [line.text.split()[0] for line in compiled.listing]
    assert all(any(text.startswith(name) for text in shown) for name in names), shown
    outcome, views = machine.run(compiled.image, list(arrays), 1, 32)
    assert outcome.ending is Ending.DONE, outcome
    return views[0]


def kernel(body: str, kind: str, attributes: str = "") -> str:
    """A kernel `k(out, a, b)` that stores %r for each work-item."""
    return f"""
declare i32 @llvm.amdgcn.workitem.id.x()
declare {kind} @llvm.minimumnum.{suffix(kind)}({kind}, {kind})
declare {kind} @llvm.maximumnum.{suffix(kind)}({kind}, {kind})
declare {kind} @llvm.minimum.{suffix(kind)}({kind}, {kind})
declare {kind} @llvm.maximum.{suffix(kind)}({kind}, {kind})
declare float @llvm.amdgcn.sin.f32(float)
define amdgpu_kernel void @k(ptr addrspace(1) %out, ptr addrspace(1) %x, ptr addrspace(1) %y) #0 {{
  %i = call i32 @llvm.amdgcn.workitem.id.x()
  %px = getelementptr {kind}, ptr addrspace(1) %x, i32 %i
  %py = getelementptr {kind}, ptr addrspace(1) %y, i32 %i
  %a = load {kind}, ptr addrspace(1) %px
  %b = load {kind}, ptr addrspace(1) %py
{body}
  %to = getelementptr {kind}, ptr addrspace(1) %out, i32 %i
  store {kind} %r, ptr addrspace(1) %to
  ret void
}}
attributes #0 = {{ "amdgpu-flat-work-group-size"="32,32" {attributes} }}
"""


def suffix(kind: str) -> str:
    return {"float": "f32", "double": "f64"}[kind]


def expected(a: int, b: int, *, largest: bool, number: bool) -> set[int]:
    """Return the results that the ISA document allows, as bits. number: a number wins over NaNs."""
    nans = [value | 0x40_0000 for value in (a, b) if value in NANS]
    if len(nans) == 2 or (nans and not number):
        return set(nans)
    if nans:
        return {b if a in NANS else a}
    values = [np.uint32(value).view(np.float32) for value in (a, b)]
    ordered = sorted((a, b), key=lambda v: (np.uint32(v).view(np.float32), not v >> 31))
    assert not np.isnan(values).any()
    return {ordered[-1] if largest else ordered[0]}


@pytest.mark.parametrize("name", ["minimumnum", "maximumnum", "minimum", "maximum"])
def test_minima_and_maxima_of_nans(machine: Machine, name: str) -> None:
    words = (SIGNALLING, QUIET, NEGATIVE, ONE, TWO, PLUS, MINUS)
    pairs = [(a, b) for a in words for b in words]
    ir = kernel(f"  %r = call float @llvm.{name}.f32(float %a, float %b)", "float")
    opcode = {"minimumnum": "v_min_num_f32", "maximumnum": "v_max_num_f32"}.get(
        name, f"v_{name}_f32"
    )
    for half in (pairs[:32], pairs[-32:]):
        a, b = (np.array(column, np.uint32) for column in zip(*half, strict=True))
        found = run(machine, ir, (opcode,), np.zeros(32, np.uint32), a, b)
        for (first, second), result in zip(half, found.tolist(), strict=True):
            allowed = expected(
                first, second, largest=name.startswith("max"), number=name.endswith("num")
            )
            assert result in allowed, (hex(first), hex(second), hex(result))


def test_the_sine_of_minus_zero(machine: Machine) -> None:
    ir = kernel("  %r = call float @llvm.amdgcn.sin.f32(float %a)", "float")
    given = np.full(32, ONE, np.uint32)
    given[:4] = (MINUS, PLUS, 0xBF80_0000, 0x4000_0000)
    found = run(machine, ir, ("v_sin_f32",), np.zeros(32, np.uint32), given, given)
    assert found[:4].tolist() == [MINUS, PLUS, 0, 0]


FLUSHED, KEPT = "preserve-sign,preserve-sign", "ieee,ieee"


@pytest.mark.parametrize("single", [FLUSHED, KEPT])
@pytest.mark.parametrize("double", [FLUSHED, KEPT])
def test_denormals_of_doubles_have_a_mode_of_their_own(
    machine: Machine, single: str, double: str
) -> None:
    attributes = f'"denormal-fp-math"="{double}" "denormal-fp-math-f32"="{single}"'
    body = "  %r = fadd {0} %a, %b"
    for kind, dtype, keeps in (
        ("float", np.float32, single == KEPT), ("double", np.float64, double == KEPT),
    ):  # fmt: skip
        tiny = np.nextafter(dtype(0), dtype(1)) * np.arange(1, 33).astype(dtype)
        assert (tiny > 0).all()
        ir = kernel(body.format(kind), kind, attributes)
        found = run(machine, ir, (f"v_add_{suffix(kind)}",), np.zeros(32, dtype), tiny, tiny)
        assert np.array_equal(found, 2 * tiny if keeps else np.zeros(32, dtype))


SET_OVERFLOW = 1 | 23 << 6  # hwreg(HW_REG_MODE, 23, 1), as Triton has it


@pytest.mark.parametrize(("kind", "largest", "over"), [("fp8", 0x7E, 0x7F), ("bf8", 0x7B, 0x7C)])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_too_large_numbers_of_eight_bits(
    machine: Machine, kind: str, largest: int, over: int, mode: int
) -> None:
    """mode: FP16_OVFL as it was, set where the wave begins, or set and cleared in other blocks."""
    sets = f"  call void @llvm.amdgcn.s.setreg(i32 {SET_OVERFLOW}, i32 1)\n" if mode else ""
    if mode == 2:
        sets += f"""  %c = icmp sgt i32 %i, -1
  br i1 %c, label %more, label %rest
more:
  call void @llvm.amdgcn.s.setreg(i32 {SET_OVERFLOW}, i32 0)
  br label %rest
rest:
"""
    body = f"""{sets}
  %p = call i32 @llvm.amdgcn.cvt.pk.{kind}.f32(float %a, float %b, i32 0, i1 false)
  %r = bitcast i32 %p to float"""
    ir = (
        kernel(body, "float")
        + f"""
declare void @llvm.amdgcn.s.setreg(i32, i32)
declare i32 @llvm.amdgcn.cvt.pk.{kind}.f32(float, float, i32, i1)
"""
    )
    given = np.resize([1e9, -1e9, np.inf, -np.inf, np.nan, 1.0, 3e5], 32).astype(np.float32)
    found = run(machine, ir, (f"v_cvt_pk_{kind}_f32",), np.zeros(32, np.uint32), given, given)
    limit = largest if mode == 1 else over
    one = 0x38 if kind == "fp8" else 0x3C
    codes = [limit, limit | 0x80, over, over | 0x80, 0x7F, one, limit]
    assert [int(word) & 0xFF for word in found[:7]] == codes
    assert [int(word) >> 8 & 0xFF for word in found[:7]] == codes


@pytest.mark.parametrize("mode", [0, 1])
def test_too_large_halves(machine: Machine, mode: int) -> None:
    """Of an addition, a conversion and a packed product; infinite sources stay infinite."""
    sets = f"  call void @llvm.amdgcn.s.setreg(i32 {SET_OVERFLOW}, i32 1)\n" if mode else ""
    body = f"""{sets}
  %h = fptrunc float %a to half
  %g = fptrunc float %b to half
  %s = fadd half %h, %g
  %v0 = insertelement <2 x half> poison, half %g, i32 0
  %v = insertelement <2 x half> %v0, half %s, i32 1
  %w = fmul <2 x half> %v, %v
  %r = bitcast <2 x half> %w to float"""
    ir = kernel(body, "float") + "declare void @llvm.amdgcn.s.setreg(i32, i32)\n"
    a = np.resize([60000, 1e6, np.inf, 1, -60000], 32).astype(np.float32)
    b = np.resize([60000, 2, 1, 300, -60000], 32).astype(np.float32)
    names = ("v_cvt_f16_f32", "v_add_f16", "v_pk_mul_f16")
    found = run(machine, ir, names, np.zeros(32, np.uint32), a, b)
    large = 0x7BFF if mode else 0x7C00
    assert [int(word) & 0xFFFF for word in found[:5]] == [large, 0x4400, 0x3C00, large, large]
    assert [int(word) >> 16 for word in found[:5]] == [large, large, 0x7C00, large, large]
