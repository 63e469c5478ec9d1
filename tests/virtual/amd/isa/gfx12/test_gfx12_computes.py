"""gfx12 in the shader core: LLVM's kernels for gfx1201 compute what LLVM's host code computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.amd.isa.gfx_corpus import compile_ir
from tests.support.amd.isa.gfx_run import Machine
from tests.virtual.amd.isa.translator import test_translate_corpus as corpus_test
from ugpu.virtual.amd.isa.core import GfxCore
from ugpu.virtual.amd.isa.targets.target import target
from ugpu.virtual.amd.shader import Ending

IDS = """
declare i32 @llvm.amdgcn.workitem.id.x()
declare i32 @llvm.amdgcn.workgroup.id.x()
declare i32 @llvm.amdgcn.workgroup.id.y()
declare i32 @llvm.amdgcn.workgroup.id.z()
@turned = internal addrspace(3) global [64 x i32] poison
declare void @llvm.amdgcn.s.barrier()
define amdgpu_kernel void @k(ptr addrspace(1) %out) #0 {
  %i = call i32 @llvm.amdgcn.workitem.id.x()
  %x = call i32 @llvm.amdgcn.workgroup.id.x()
  %y = call i32 @llvm.amdgcn.workgroup.id.y()
  %z = call i32 @llvm.amdgcn.workgroup.id.z()
  %p = getelementptr [64 x i32], ptr addrspace(3) @turned, i32 0, i32 %i
  store i32 %i, ptr addrspace(3) %p
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  %other = sub i32 63, %i
  %q = getelementptr [64 x i32], ptr addrspace(3) @turned, i32 0, i32 %other
  %turned = load i32, ptr addrspace(3) %q
  %zy0 = mul i32 %z, 3
  %zy = add i32 %zy0, %y
  %zyx0 = mul i32 %zy, 2
  %group = add i32 %zyx0, %x
  %first = mul i32 %group, 64
  %index = add i32 %first, %i
  %a = mul i32 %group, 1000
  %value = add i32 %a, %turned
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %index
  store i32 %value, ptr addrspace(1) %to
  ret void
}
attributes #0 = { "amdgpu-flat-work-group-size"="64,64" }
"""


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine(GfxCore(1, target=target("gfx12")))


def _run(machine: Machine, ir: str, arguments: list[Any], *shape: Any) -> NDArray[Any]:
    image = compile_ir(ir, cpu="gfx1201").image
    outcome, views = machine.run(image, arguments, *shape)
    assert outcome.ending is Ending.DONE, outcome
    return views[0]


@pytest.mark.parametrize("group", range(8))
def test_corpus_computes_what_the_host_does(
    machine: Machine, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_test, "compile_ir", lambda ir: compile_ir(ir, cpu="gfx1201"))
    corpus_test.test_corpus_computes_what_the_host_does(machine, group)


def test_workgroups_have_their_ids_and_split_barriers_wait(machine: Machine) -> None:
    words = [line.text.split()[0] for line in compile_ir(IDS, cpu="gfx1201").listing]
    assert "s_barrier_signal" in words
    assert "s_barrier_wait" in words
    out = _run(machine, IDS, [np.zeros(2 * 3 * 2 * 64, np.uint32)], (2, 3, 2), 64)
    groups, lanes = np.divmod(np.arange(2 * 3 * 2 * 64), 64)
    assert np.array_equal(out, groups * 1000 + 63 - lanes)


def test_waves_have_their_number(machine: Machine) -> None:
    """In TTMP8, from where Triton's kernels read it."""
    ir = """
declare i32 @llvm.amdgcn.workitem.id.x()
declare i32 @llvm.amdgcn.wave.id()
define amdgpu_kernel void @k(ptr addrspace(1) %out) #0 {
  %i = call i32 @llvm.amdgcn.workitem.id.x()
  %wave = call i32 @llvm.amdgcn.wave.id()
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %i
  store i32 %wave, ptr addrspace(1) %to
  ret void
}
attributes #0 = { "amdgpu-flat-work-group-size"="128,128" }
"""
    assert "ttmp8" in " ".join(line.text for line in compile_ir(ir, cpu="gfx1201").listing)
    out = _run(machine, ir, [np.zeros(128, np.uint32)], 1, 128)
    assert np.array_equal(out, np.arange(128) // 32)


def test_scalar_floats(machine: Machine) -> None:
    ir = """
define amdgpu_kernel void @k(ptr addrspace(1) %out, float %a, float %b) {
  %sum = fadd float %a, %b
  %product = fmul float %a, %b
  %whole = call float @llvm.floor.f32(float %product)
  %below = fcmp olt float %a, %b
  %less = select i1 %below, float %sum, float %whole
  %integer = fptosi float %product to i32
  %back = uitofp i32 %integer to float
  %half = fptrunc float %b to half
  %widened = fpext half %half to float
  %r0 = insertelement <4 x float> poison, float %less, i32 0
  %r1 = insertelement <4 x float> %r0, float %whole, i32 1
  %r2 = insertelement <4 x float> %r1, float %back, i32 2
  %r3 = insertelement <4 x float> %r2, float %widened, i32 3
  store <4 x float> %r3, ptr addrspace(1) %out
  ret void
}
declare float @llvm.floor.f32(float)
"""
    words = " ".join(line.text for line in compile_ir(ir, cpu="gfx1201").listing)
    for name in ("s_mul_f32", "s_floor_f32", "s_cmp_", "s_cvt_i32_f32", "s_cvt_f16_f32"):
        assert name in words
    for a, b in ((1.5, 2.25), (7.25, 3.1), (3.0, 1.0)):
        out = _run(machine, ir, [np.zeros(4, np.float32), a, b])
        x, y = np.float32(a), np.float32(b)
        whole = np.floor(x * y)
        expected = [x + y if x < y else whole, whole, np.trunc(x * y), np.float32(np.float16(y))]
        assert np.array_equal(out, np.array(expected, np.float32))


@pytest.mark.parametrize(
    ("name", "function"),
    [("exp2", np.exp2), ("log2", np.log2), ("sqrt", np.sqrt), ("amdgcn.rcp", np.reciprocal)],
)
@pytest.mark.parametrize(("kind", "dtype"), [("float", np.float32), ("half", np.float16)])
def test_functions_of_scalars(
    machine: Machine, name: str, function: Any, kind: str, dtype: Any
) -> None:
    suffix = {"float": "f32", "half": "f16"}[kind]
    ir = f"""
define amdgpu_kernel void @k(ptr addrspace(1) %out, {kind} %x) #0 {{
  %y = call afn {kind} @llvm.{name}.{suffix}({kind} %x)
  store {kind} %y, ptr addrspace(1) %out
  ret void
}}
declare {kind} @llvm.{name}.{suffix}({kind})
attributes #0 = {{ "denormal-fp-math-f32"="preserve-sign,preserve-sign" }}
"""
    short = {"exp2": "exp", "log2": "log", "amdgcn.rcp": "rcp"}.get(name, name)
    words = [line.text.split()[0] for line in compile_ir(ir, cpu="gfx1201").listing]
    assert f"v_s_{short}_{suffix}" in words
    for x in (0.25, 1.0, 3.7):
        given: Any = x if kind == "float" else int(dtype(x).view(np.uint16))
        out = _run(machine, ir, [np.zeros(1, dtype), given])
        np.testing.assert_allclose(
            out[0], function(dtype(x)), rtol=1e-3 if kind == "half" else 1e-6
        )


@pytest.mark.parametrize(
    ("kind", "extend"), [("i8", "sext"), ("i8", "zext"), ("i16", "sext"), ("i16", "zext")]
)
def test_narrow_scalar_loads(machine: Machine, kind: str, extend: str) -> None:
    ir = f"""
define amdgpu_kernel void @k(ptr addrspace(1) %out, ptr addrspace(4) noalias readonly %in) {{
  %p = getelementptr {kind}, ptr addrspace(4) %in, i32 1
  %x = load {kind}, ptr addrspace(4) %p
  %r = {extend} {kind} %x to i32
  store i32 %r, ptr addrspace(1) %out
  ret void
}}
"""
    name = f"s_load_{'i' if extend == 'sext' else 'u'}{kind[1:]}"
    assert name in [line.text.split()[0] for line in compile_ir(ir, cpu="gfx1201").listing]
    data = np.array([0x11, 0x92, 0x33, 0xF4], np.uint8)
    out = _run(machine, ir, [np.zeros(1, np.int32), data])
    element = data.view(f"{'i' if extend == 'sext' else 'u'}{int(kind[1:]) // 8}")[1]
    assert out[0] == element


def test_what_is_missing_is_illegal_by_name(machine: Machine) -> None:
    state = """
define amdgpu_kernel void @k(ptr addrspace(1) %out) {
  %v = call i32 @llvm.amdgcn.s.get.barrier.state(i32 -1)
  store i32 %v, ptr addrspace(1) %out
  ret void
}
declare i32 @llvm.amdgcn.s.get.barrier.state(i32)
"""
    image = compile_ir(state, cpu="gfx1201").image
    outcome, _ = machine.run(image, [np.zeros(64, np.uint32)])
    assert outcome.ending is Ending.ILLEGAL_INSTRUCTION
    assert "s_get_barrier_state" in str(outcome.detail)


@pytest.mark.parametrize("space", ["global", "ds"])
@pytest.mark.parametrize(
    ("operation", "kind", "name"),
    [
        ("usub_cond", "i32", "cond_sub_u32"),
        ("usub_sat", "i32", "sub_clamp_u32"),
        ("fadd", "<2 x half>", "pk_add_f16"),
        ("fadd", "<2 x bfloat>", "pk_add_bf16"),
    ],
)
def test_atomics(machine: Machine, operation: str, kind: str, name: str, space: str) -> None:
    """Each lane does it to one word; the lanes' old values are in the order of the lanes."""
    local = space == "ds"
    stem, last = name.rsplit("_", 1)
    at = "ptr addrspace(3) @word" if local else "ptr addrspace(1) %out"
    mark = ", !amdgpu.no.fine.grained.memory !0, !amdgpu.no.remote.memory !0"
    ir = f"""
@word = internal addrspace(3) global {kind} poison
declare i32 @llvm.amdgcn.workitem.id.x()
define amdgpu_kernel void @k(ptr addrspace(1) %out, {kind} %x) #0 {{
  %i = call i32 @llvm.amdgcn.workitem.id.x()
  %j = add i32 %i, 1
  %q = getelementptr {kind}, ptr addrspace(1) %out, i32 %j
  %first = load {kind}, ptr addrspace(1) %out
  {f"store {kind} %first, {at}" if local else ""}
  %old = atomicrmw {operation} {at}, {kind} %x syncscope("agent") monotonic{mark}
  store {kind} %old, ptr addrspace(1) %q
  ret void
}}
attributes #0 = {{ "amdgpu-flat-work-group-size"="32,32" }}
!0 = !{{}}
"""
    shown = f"ds_{stem}_rtn_{last}" if local else f"global_atomic_{name}"
    assert shown in [line.text.split()[0] for line in compile_ir(ir, cpu="gfx1201").listing]
    if kind == "i32":
        first, step = 100, 7
        given = np.full(33, first, np.uint32)
        out = _run(machine, ir, [given, step], 1, 32)
        rest = 0 if operation == "usub_sat" else first % step  # of what is less than a step
        wanted = [first]
        while len(wanted) < 32:
            wanted.append(wanted[-1] - step if wanted[-1] >= step else rest)
        assert list(out[1:]) == wanted
    else:
        one = 0x3C00 if "half" in kind else 0x3F80  # 1.0 in both halves
        out = _run(machine, ir, [np.zeros(33, np.uint32), one * 0x1_0001], 1, 32)
        halves = out[1:].astype(np.uint32)
        low = halves & 0xFFFF
        values = low.astype(np.uint16).view(np.float16) if one == 0x3C00 else (
            (low << 16).view(np.float32))  # fmt: skip
        assert list(values) == list(range(32)) and list(halves >> 16) == list(low)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("extend", ["zext", "sext"])
def test_parts_of_scalars_from_buffers(machine: Machine, bits: int, extend: str) -> None:
    """s_buffer_load_u8 and the like, at each byte of a dword, and beyond the records, which reads
    zero."""
    size, records = bits // 8, 10
    offsets = [*range(0, records + 4, size)]
    loads = "".join(
        f"""
  %v{k} = call i{bits} @llvm.amdgcn.s.buffer.load.i{bits}(<4 x i32> %rs, i32 {at}, i32 0)
  %w{k} = {extend} i{bits} %v{k} to i32
  %p{k} = getelementptr i32, ptr addrspace(1) %out, i32 {k}
  store i32 %w{k}, ptr addrspace(1) %p{k}"""
        for k, at in enumerate(offsets)
    )
    ir = f"""
declare i{bits} @llvm.amdgcn.s.buffer.load.i{bits}(<4 x i32>, i32, i32)
define amdgpu_kernel void @k(ptr addrspace(1) %out, ptr addrspace(1) %in) #0 {{
  %a = ptrtoint ptr addrspace(1) %in to i64
  %pair = bitcast i64 %a to <2 x i32>
  %r = shufflevector <2 x i32> %pair, <2 x i32> <i32 {records}, i32 0>,
    <4 x i32> <i32 0, i32 1, i32 2, i32 3>
  %rs = add <4 x i32> %r, zeroinitializer{loads}
  ret void
}}
attributes #0 = {{ "amdgpu-flat-work-group-size"="32,32" }}
"""
    compiled = compile_ir(ir, cpu="gfx1201")
    name = f"s_buffer_load_{'u' if extend == 'zext' else 'i'}{bits}"
    assert any(line.text.startswith(name) for line in compiled.listing)
    data = np.random.default_rng(bits).integers(128, 256, 16, np.uint8)
    outcome, views = machine.run(compiled.image, [np.zeros(32, np.uint32), data], 1, 32)
    assert outcome.ending is Ending.DONE, outcome
    kind = np.dtype(f"{'u' if extend == 'zext' else 'i'}{size}")
    parts = [data[at : at + size].view(kind)[0] if at + size <= records else 0 for at in offsets]
    wanted = np.array([int(part) & 0xFFFFFFFF for part in parts], np.uint32)
    assert np.array_equal(views[0][: len(offsets)], wanted)
