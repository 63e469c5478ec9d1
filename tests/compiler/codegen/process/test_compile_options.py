"""Options of LLVM, which are the process's, do not reach what is compiled next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.compiler.compiler_cases import GFX1100
from ugpu.compiler.codegen.process import objects
from ugpu.hcq.objects import jit

KERNEL = """
define amdgpu_kernel void @k(ptr addrspace(1) %out, <4 x half> %left, <4 x half> %right) {
  %at = call i32 @llvm.amdgcn.workitem.id.x()
  %product = fmul contract <4 x half> %left, %right
  %sum = fadd contract <4 x half> %product, %left
  %wide = fpext <4 x half> %sum to <4 x float>
  %wider = zext i32 %at to i64
  %index = and i64 %wider, 1023
  %place = getelementptr <4 x float>, ptr addrspace(1) %out, i64 %index
  store <4 x float> %wide, ptr addrspace(1) %place
  ret void
}
declare i32 @llvm.amdgcn.workitem.id.x()
"""
HOST = "define i32 @f(i32 %x) {\n  %y = mul i32 %x, 5\n  ret i32 %y\n}\n"


def gpu_code() -> bytes:
    return objects._compile(KERNEL, GFX1100, False)


def test_a_first_version_changes_no_later_code(monkeypatch: pytest.MonkeyPatch) -> None:
    before = gpu_code()
    jit._compile(HOST, jit.LIMITED, 0)
    assert gpu_code() == before
    monkeypatch.setattr(jit, "_machine", lambda level: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        jit._compile(HOST, jit.LIMITED, 0)
    assert gpu_code() == before
    jit._combine(False)  # the option does change this kernel
    try:
        assert gpu_code() != before
    finally:
        jit._combine(True)


LOOP = """
define amdgpu_kernel void @k(ptr addrspace(1) %out, i32 %count) {
enter:
  br label %loop
loop:
  %i = phi i32 [ 0, %enter ], [ %next, %loop ]
  %scaled = mul i32 %i, 12
  %wide = zext i32 %scaled to i64
  %place = getelementptr i32, ptr addrspace(1) %out, i64 %wide
  store i32 %i, ptr addrspace(1) %place
  %next = add nuw i32 %i, 1
  %more = icmp ult i32 %next, %count
  br i1 %more, label %loop, label %end
end:
  ret void
}
"""


def test_a_models_code_changes_no_boards_code() -> None:
    quick = replace(GFX1100, quick=True)
    before, of_model = (objects._compile(LOOP, target, False) for target in (GFX1100, quick))
    assert objects._compile(LOOP, GFX1100, False) == before != of_model
    with pytest.raises(RuntimeError):
        objects._compile("nonsense", quick, False)
    assert objects._compile(LOOP, GFX1100, False) == before
