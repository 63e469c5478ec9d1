"""Triton's kernels for gfx1100, linked objects of its own lld, on the virtual Navi31."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest

import hcq
from tests.foreign.client import require, run_client

require("triton")
pytestmark = pytest.mark.foreign


def test_kernels_run(tmp_path: Path) -> None:
    made = run_client("tests.foreign.triton_compile", [], tmp_path / "kernels.json", {}, 240)
    assert set(made) == {"vector_add", "softmax"}
    random = np.random.default_rng(1)
    x, y = (random.random(3000, np.float32) for _ in range(2))
    with hcq.open("virtual:navi31") as device:
        a, b, out = (device.alloc(12000) for _ in range(3))
        a.copy_from(x)
        b.copy_from(y)

        def run(name: str, *args: object) -> np.ndarray:
            kernel = made[name]
            with device.load(base64.b64decode(kernel["object"])) as program:
                with device.queue() as queue:
                    # Triton's own two pointers, to scratch and profile memory, are null.
                    queue.launch(
                        program[name], grid=(3,), block=(kernel["threads"],),
                        args=(*args, None, None), dynamic_local=kernel["shared"],
                    )  # fmt: skip
                device.synchronize()
            return out.numpy(np.float32)

        assert (run("vector_add", a, b, out, np.int32(3000)) == x + y).all()
        rows = np.exp(x.reshape(3, 1000).astype(np.float64))
        expected = rows / rows.sum(1, keepdims=True)
        got = run("softmax", a, out, np.int32(1000)).reshape(3, 1000)
        assert np.allclose(got, expected, rtol=1e-6)
