"""The README's examples run as they are printed, on the virtual chip."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import hcq
from tests.support.kernels import compile_ir

README = Path(__file__).parents[1] / "README.md"

VECTOR_ADD = """
target triple = "amdgcn-amd-amdhsa"
define amdgpu_kernel void @vector_add(
    ptr addrspace(1) %out, ptr addrspace(1) %x, ptr addrspace(1) %y, i32 %count) #0 {
  %group = call i32 @llvm.amdgcn.workgroup.id.x()
  %thread = call i32 @llvm.amdgcn.workitem.id.x()
  %base = mul i32 %group, 64
  %i = add i32 %base, %thread
  %inside = icmp ult i32 %i, %count
  br i1 %inside, label %body, label %done
body:
  %x.at = getelementptr float, ptr addrspace(1) %x, i32 %i
  %y.at = getelementptr float, ptr addrspace(1) %y, i32 %i
  %out.at = getelementptr float, ptr addrspace(1) %out, i32 %i
  %a = load float, ptr addrspace(1) %x.at
  %b = load float, ptr addrspace(1) %y.at
  %sum = fadd float %a, %b
  store float %sum, ptr addrspace(1) %out.at
  br label %done
done:
  ret void
}
declare i32 @llvm.amdgcn.workgroup.id.x()
declare i32 @llvm.amdgcn.workitem.id.x()
attributes #0 = { "amdgpu-no-implicitarg-ptr" "amdgpu-no-queue-ptr" "amdgpu-no-dispatch-id"
  "amdgpu-flat-work-group-size"="64,64" }
"""


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_the_first_example(capsys: pytest.CaptureFixture[str]) -> None:
    exec(examples()[0], {})
    rows = re.findall(r"\[+\s*([\d.e+-]+)", capsys.readouterr().out)
    assert rows and all(0 <= float(first) <= 1 for first in rows)


def test_the_second_example() -> None:
    array = np.linspace(-3, 3, 256, dtype=np.float32)
    with hcq.open("virtual:navi31") as gpu, gpu.alloc(1024) as out, gpu.alloc(1024) as y:
        y.copy_from(array[::-1])
        with gpu.alloc(1024) as x:
            x.copy_from(array * 3)
            code = compile_ir(VECTOR_ADD, "amdgcn-amd-amdhsa", "gfx1100")
            names = {
                "gpu": gpu, "np": np, "array": array, "code_object": code,
                "out": out, "x": x, "y": y,
            }  # fmt: skip
            exec(examples()[1], names)
        assert (out.numpy(np.float32) == array * 3 + array[::-1]).all()
        buffer = names["buf"]
        assert isinstance(buffer, hcq.Buffer)
        assert (buffer.numpy(np.float32)[:256] == array).all()
        buffer.close()


def test_there_are_two_examples() -> None:
    assert len(examples()) == 2
