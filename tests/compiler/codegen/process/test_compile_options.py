"""Options of LLVM, which are the process's, do not reach what is compiled next."""

from __future__ import annotations

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
