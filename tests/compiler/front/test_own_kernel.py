"""`Device.compile`: LLVM IR, PTX and kernel IR of a user's own, on every kind of device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import ugpu
from ugpu import ir
from ugpu.compiler import dtype as dtypes
from ugpu.compiler.codegen.process.children import shared
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, CompileError

COUNT = 256

AMD = """
define amdgpu_kernel void @twice(ptr addrspace(1) %out, ptr addrspace(1) %x) {
  %i = call i32 @llvm.amdgcn.workitem.id.x()
  %from = getelementptr float, ptr addrspace(1) %x, i32 %i
  %to = getelementptr float, ptr addrspace(1) %out, i32 %i
  %v = load float, ptr addrspace(1) %from
  %w = fadd float %v, %v
  store float %w, ptr addrspace(1) %to
  ret void
}
declare i32 @llvm.amdgcn.workitem.id.x()
"""
NVIDIA = (
    AMD.replace("amdgpu_kernel", "ptx_kernel")
    .replace("llvm.amdgcn.workitem.id.x", "llvm.nvvm.read.ptx.sreg.tid.x")
)  # fmt: skip
HOST = """
@"twice.ugpu" = constant { i32, i32 } { i32 1, i32 16 }
define void @twice(ptr %kernarg, ptr %launch) {
entry:
  %out = load ptr, ptr %kernarg
  %second = getelementptr i8, ptr %kernarg, i64 8
  %x = load ptr, ptr %second
  br label %loop
loop:
  %i = phi i32 [ 0, %entry ], [ %next, %loop ]
  %from = getelementptr float, ptr %x, i32 %i
  %to = getelementptr float, ptr %out, i32 %i
  %v = load float, ptr %from
  %w = fadd float %v, %v
  store float %w, ptr %to
  %next = add i32 %i, 1
  %more = icmp ult i32 %next, 256
  br i1 %more, label %loop, label %end
end:
  ret void
}
"""
PTX = """
.version 7.0
.target sm_75
.address_size 64
.visible .entry twice(.param .u64 out, .param .u64 x)
{
  .reg .b32 %r<2>; .reg .b64 %d<6>; .reg .f32 %f<2>;
  ld.param.u64 %d0, [out];
  ld.param.u64 %d1, [x];
  mov.u32 %r0, %tid.x;
  mul.wide.u32 %d2, %r0, 4;
  add.u64 %d3, %d0, %d2;
  add.u64 %d4, %d1, %d2;
  ld.global.f32 %f0, [%d4];
  add.f32 %f1, %f0, %f0;
  st.global.f32 [%d3], %f1;
  ret;
}
"""
IR_OF = {"amdhsa": AMD, "ptx": NVIDIA, "host": HOST}


def own() -> ir.Kernel:
    """out[i] = x[i] + x[i] in our kernel IR."""
    out = ir.Memory("out", dtypes.float32, COUNT, "global")
    x = ir.Memory("x", dtypes.float32, COUNT, "global")
    at = ir.group_range(0, COUNT).index()
    value = ir.load(x, at)
    body = (ir.Store(out, at, ir.binary("add", value, value)),)
    return ir.Kernel("twice", (out, x), (), (COUNT, 1, 1), 1, body)


@pytest.fixture(params=["cpu", "virtual:navi31", "virtual:ga102"], scope="module")
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    with ugpu.open(request.param) as found:
        yield found


def check(device: Device, source: object, groups: int, threads: int) -> None:
    x = np.arange(COUNT, dtype=np.float32)
    result = np.empty(COUNT, np.float32)
    with (
        device.compile(source) as program,
        device.alloc(result.nbytes) as out,
        device.alloc(x.nbytes) as given,
    ):
        given.copy_from(x)
        with device.queue() as queue:
            grid, block = (groups, 1, 1), (threads, 1, 1)
            queue.launch(program["twice"], grid=grid, block=block, args=(out, given))
        device.synchronize()
        out.copy_to(result)
    assert np.array_equal(result, x + x)


def test_llvm_ir(device: Device) -> None:
    check(device, IR_OF[device.target.abi], 1, 1 if device.target.abi == "host" else COUNT)


def test_kernel_ir(device: Device) -> None:
    check(device, own(), COUNT, 1)


def test_ptx(device: Device) -> None:
    if device.target.abi == "ptx":
        check(device, PTX, 1, COUNT)
        check(device, PTX.encode(), 1, COUNT)
    else:
        with pytest.raises(BadArgument, match="source is PTX"):
            device.compile(PTX)


def test_what_was_compiled_once_is_not_compiled_again(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = IR_OF[device.target.abi]
    device.compile(source).close()
    monkeypatch.setattr(type(shared()), "submit", lambda *_: pytest.fail("compiled again"))
    device.compile(source).close()


def test_an_error_names_its_line(device: Device) -> None:
    source = IR_OF[device.target.abi].replace("fadd float %v, %v", "fadd float %v, %absent")
    with pytest.raises(CompileError) as caught:
        device.compile(source)
    assert caught.value.ir == source
    line = caught.value.facts["line"]
    assert isinstance(line, int)
    assert "%absent" in source.splitlines()[line - 1]


def test_an_error_in_ptx_names_its_line() -> None:
    source = PTX.replace("add.f32 %f1, %f0, %f0;", "add.f32 %f1, %f0, %f9;")
    with ugpu.open("virtual:ga102") as device, pytest.raises(CompileError) as caught:
        device.compile(source)
    assert caught.value.facts["code"] == "add.f32 %f1, %f0, %f9;"


def test_an_intrinsic_that_ends_llvm_ends_its_child_only(device: Device) -> None:
    foreign = "llvm.nvvm.barrier0" if device.target.abi != "ptx" else "llvm.amdgcn.s.barrier"
    body = f"define void @twice() {{\n  call void @{foreign}()\n  ret void\n}}\n"
    source = f"{body}declare void @{foreign}()\n"
    with pytest.raises(CompileError):
        device.compile(source)


def test_kernel_ir_that_breaks_a_rule(device: Device) -> None:
    broken = own()
    broken = ir.Kernel("twice", broken.parameters, (), (1, 1, 1), 4096, broken.body)
    with pytest.raises(CompileError, match="not valid"):
        device.compile(broken)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (None, "got NoneType"),
        (7, "got int"),
        ("", "must not be empty"),
        (b"\xff\xfe\x00", "pass a compiled object to `load`"),
        ("__global__ void k() {}", "must be LLVM IR, PTX or a kernel"),
        (
            'target triple = "sparc-unknown"\ndefine void @k() {\n ret void\n}\n',
            "is LLVM IR for sparc",
        ),
    ],
)
def test_other_sources_are_refused(device: Device, source: object, text: str) -> None:
    with pytest.raises(BadArgument, match=text):
        device.compile(source)


def test_source_without_a_kernel(device: Device) -> None:
    with pytest.raises(CompileError, match="expected a kernel as"):
        device.compile("define void @helper() {\n  ret void\n}\n")
