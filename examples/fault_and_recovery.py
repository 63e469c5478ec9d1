"""A kernel writes outside its buffer: the error names it, `reset` brings the device back.

usage: python examples/fault_and_recovery.py
"""

import numpy as np

import ugpu

SOURCE = """
define amdgpu_kernel void @store_at(ptr addrspace(1) %out, i64 %place) {
  %to = getelementptr i8, ptr addrspace(1) %out, i64 %place
  store i32 7, ptr addrspace(1) %to
  ret void
}
"""

with (
    ugpu.open("virtual:navi31") as gpu,
    gpu.compile(SOURCE) as program,
    gpu.alloc(4096) as out,
    gpu.alloc(4096) as bystander,
):
    bystander.copy_from(np.arange(1024, dtype="i4"))

    def store(place: int) -> None:
        with gpu.queue() as queue:
            arguments = (out, np.int64(place))
            queue.launch(program["store_at"], grid=(1, 1, 1), block=(1, 1, 1), args=arguments)
        gpu.synchronize()

    try:
        store(1 << 40)
    except ugpu.errors.PageFault as error:
        print(error)
    else:
        raise SystemExit("the fault was not reported")

    gpu.reset()  # by the mildest step that works; buffers and programs stay
    store(8)
    found = np.empty(1024, "i4")
    out.copy_to(found)
    assert found[2] == 7
    bystander.copy_to(found)
    assert np.array_equal(found, np.arange(1024))
    print("after reset: the kernel runs, other buffers are intact")
