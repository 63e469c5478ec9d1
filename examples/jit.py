"""`@jit`: a function's kernels are recorded once and replayed with new inputs.

usage: python examples/jit.py [DEVICE]
"""

import sys
import time

import numpy as np

import ugpu

with ugpu.open(sys.argv[1] if len(sys.argv) > 1 else "cpu") as gpu:
    rng = np.random.default_rng(0)
    weights = [ugpu.Tensor(rng.standard_normal((128, 128), dtype="f4") / 8, device=gpu)
               for _ in range(4)]  # fmt: skip

    @ugpu.jit
    def network(x: ugpu.Tensor) -> ugpu.Tensor:
        for weight in weights:
            x = (x @ weight).relu()
        return x

    for call in range(1, 6):
        given = rng.standard_normal((8, 128), dtype="f4")
        start = time.perf_counter()
        result = network(ugpu.Tensor(given, device=gpu)).numpy()
        spent = time.perf_counter() - start
        expected = given
        for weight in weights:
            expected = np.maximum(expected @ weight.numpy(), 0)
        assert np.allclose(result, expected, rtol=1e-3, atol=1e-4)
        what = {1: "compiles", 2: "records", 3: "replays"}.get(call, "replays")
        print(f"call {call} {what:<8} {spent * 1e3:7.2f} ms")
