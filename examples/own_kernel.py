"""Your own kernel: LLVM IR for an AMD GPU, compiled, loaded and launched.

usage: python examples/own_kernel.py
"""

import numpy as np

import ugpu

SOURCE = """
define amdgpu_kernel void @scale(ptr addrspace(1) %out, ptr addrspace(1) %x, float %factor) {
  %group = call i32 @llvm.amdgcn.workgroup.id.x()
  %thread = call i32 @llvm.amdgcn.workitem.id.x()
  %base = mul i32 %group, 64
  %i = add i32 %base, %thread
  %from = getelementptr float, ptr addrspace(1) %x, i32 %i
  %to = getelementptr float, ptr addrspace(1) %out, i32 %i
  %v = load float, ptr addrspace(1) %from
  %w = fmul float %v, %factor
  store float %w, ptr addrspace(1) %to
  ret void
}
declare i32 @llvm.amdgcn.workgroup.id.x()
declare i32 @llvm.amdgcn.workitem.id.x()
"""

x = np.arange(256, dtype=np.float32)
result = np.empty_like(x)
with (
    ugpu.open("virtual:navi31") as gpu,
    gpu.compile(SOURCE) as program,
    gpu.alloc(x.nbytes) as given,
    gpu.alloc(x.nbytes) as out,
):
    given.copy_from(x)
    with gpu.queue() as queue:
        arguments = (out, given, np.float32(3))
        queue.launch(program["scale"], grid=(4, 1, 1), block=(64, 1, 1), args=arguments)
    gpu.synchronize()
    out.copy_to(result)
    try:
        gpu.compile(SOURCE.replace("%v, %factor", "%v, %absent"))
    except ugpu.errors.CompileError as error:
        print(f"a mistake is found in line {error.facts['line']}: {error.facts['code']}")

assert np.array_equal(result, x * 3)
print(f"256 numbers scaled: {result[:4]} ...")
