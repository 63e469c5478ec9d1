"""Compile two Triton kernels for gfx1100; argv names the file for the result."""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def vector_add(x, y, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    total = tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside)
    tl.store(out + at, total, mask=inside)


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
    value = tl.exp(value - tl.max(value, 0))
    tl.store(out + row * columns + at, value / tl.sum(value, 0), mask=at < columns)


KERNELS = (
    (vector_add, {"x": "*fp32", "y": "*fp32", "out": "*fp32", "count": "i32"}),
    (softmax, {"x": "*fp32", "out": "*fp32", "columns": "i32"}),
)


def main() -> None:
    made: dict[str, Any] = {}  # JSON
    for function, signature in KERNELS:
        source = ASTSource(function, signature | {"BLOCK": "constexpr"}, constexprs={"BLOCK": 1024})
        kernel = triton.compile(
            source, target=GPUTarget("hip", "gfx1100", 32), options={"num_warps": 4}
        )
        made[kernel.metadata.name] = {
            "object": base64.b64encode(kernel.asm["hsaco"]).decode(),
            "shared": kernel.metadata.shared,
            "threads": 32 * kernel.metadata.num_warps,
        }
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(made, file)


if __name__ == "__main__":
    main()
