"""Two queues, ordered by a timeline; then the same work captured and replayed as a graph.

usage: python examples/queues_and_graphs.py
"""

import numpy as np

import ugpu
from ugpu import ir

COUNT = 1024


def adder() -> ir.Kernel:
    """out[i] = x[i] + y[i], in kernel IR: it runs on every device."""
    out, x, y = (ir.Memory(name, ugpu.dtypes.float32, COUNT) for name in ("out", "x", "y"))
    at = ir.group_range(0, COUNT).index()
    body = (ir.Store(out, at, ir.binary("add", ir.load(x, at), ir.load(y, at))),)
    return ir.Kernel("add", (out, x, y), (), grid=(COUNT, 1, 1), block=1, body=body)


with ugpu.open("virtual:navi31") as gpu, gpu.compile(adder()) as program:
    x, y, total, copy = (gpu.alloc(4 * COUNT) for _ in range(4))
    x.copy_from(np.arange(COUNT, dtype="f4"))
    y.copy_from(np.ones(COUNT, "f4"))

    def enqueue() -> None:
        """Add on the compute queue, then copy the sum on the copy queue."""
        compute = gpu.queue()
        compute.launch(program["add"], grid=(COUNT, 1, 1), block=(1, 1, 1), args=(total, x, y))
        added = compute.submit()
        copying = gpu.queue(ugpu.QueueKind.COPY)
        copying.wait(compute.timeline, added)
        copying.copy(copy, total)
        copying.submit()

    enqueue()
    gpu.synchronize()
    result = np.empty(COUNT, "f4")
    copy.copy_to(result)
    assert np.array_equal(result, np.arange(COUNT) + 1)

    with gpu.capture() as graph:  # nothing runs: the commands become one image per queue
        enqueue()
    other = gpu.alloc(4 * COUNT)
    other.copy_from(np.full(COUNT, 10, "f4"))
    graph.replay(inputs={y: other})
    gpu.synchronize()
    copy.copy_to(result)
    assert np.array_equal(result, np.arange(COUNT) + 10)
    graph.close()
    print(f"two queues, one graph: {result[:4]} ...")
