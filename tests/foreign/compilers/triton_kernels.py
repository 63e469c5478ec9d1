"""Kernels in Triton's language, and a process that compiles them without a GPU.

    python -m tests.foreign.compilers.triton_kernels TARGET FOLDER RESULT

TARGET is "hip:gfx1100:32" or the like (backend, architecture, threads of a warp). FOLDER gets one
image a kernel; RESULT, a JSON file, tells of each: its file, name, warps, bytes of shared memory,
and parameters as Triton's signature has them, without constants.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def add(x, y, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    tl.store(out + at, tl.load(x + at, inside) + tl.load(y + at, inside), inside)


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, at < columns, other=float("-inf"))
    raised = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * columns + at, raised / tl.sum(raised, 0), at < columns)


@triton.jit
def layernorm(x, out, columns, epsilon, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * columns + at, inside, other=0.0)
    mean = tl.sum(values, 0) / columns
    apart = tl.where(inside, values - mean, 0.0)
    scale = tl.rsqrt(tl.sum(apart * apart, 0) / columns + epsilon)
    tl.store(out + row * columns + at, apart * scale, inside)


@triton.jit
def matmul(a, b, out, n, k, BLOCK: tl.constexpr, DEPTH: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    depth = tl.arange(0, DEPTH)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, k, DEPTH):
        left = tl.load(a + rows[:, None] * k + (start + depth)[None, :])
        right = tl.load(b + (start + depth)[:, None] * n + columns[None, :])
        total += tl.dot(left, right)
    tl.store(out + rows[:, None] * n + columns[None, :], total)


@triton.jit
def histogram(x, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + tl.load(x + at, at < count, other=0), 1, at < count)


@triton.jit
def scan(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.cumsum(tl.load(x + at), 0))


@triton.jit
def dropout(x, out, count, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = tl.rand(seed, at) > 0.5
    tl.store(out + at, tl.where(kept, tl.load(x + at, at < count) * 2, 0.0), at < count)


@triton.jit
def functions(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    result = tl.sin(value) + tl.log2(tl.abs(value) + 1) * tl.exp2(value) + tl.floor(value)
    tl.store(out + at, result + tl.erf(value))


F32, F16, I32 = "*fp32", "*fp16", "*i32"
# name: function, signature in order, constants
KERNELS: dict[str, tuple[Any, dict[str, str], dict[str, int]]] = {
    "add f32": (add, {"x": F32, "y": F32, "out": F32, "count": "i32"}, {"BLOCK": 256}),
    "add f16": (add, {"x": F16, "y": F16, "out": F16, "count": "i32"}, {"BLOCK": 256}),
    "softmax": (softmax, {"x": F32, "out": F32, "columns": "i32"}, {"BLOCK": 128}),
    "layernorm": (
        layernorm,
        {"x": F32, "out": F32, "columns": "i32", "epsilon": "fp32"},
        {"BLOCK": 128},
    ),
    "matmul f16": (
        matmul,
        {"a": F16, "b": F16, "out": F32, "n": "i32", "k": "i32"},
        {"BLOCK": 32, "DEPTH": 32},
    ),
    "matmul f32": (
        matmul,
        {"a": F32, "b": F32, "out": F32, "n": "i32", "k": "i32"},
        {"BLOCK": 32, "DEPTH": 16},
    ),
    "histogram": (histogram, {"x": I32, "out": I32, "count": "i32"}, {"BLOCK": 256}),
    "scan": (scan, {"x": F32, "out": F32}, {"BLOCK": 256}),
    "dropout": (
        dropout, {"x": F32, "out": F32, "count": "i32", "seed": "i32"}, {"BLOCK": 256},
    ),
    "functions": (functions, {"x": F32, "out": F32}, {"BLOCK": 256}),
}  # fmt: skip


def main(target: str, folder: str, result: str) -> None:
    """Compile all kernels for the target."""
    backend, architecture, threads = target.split(":")
    arch = int(architecture) if backend == "cuda" else architecture
    found = {}
    for number, (label, (function, signature, constants)) in enumerate(KERNELS.items()):
        whole = {**signature, **dict.fromkeys(constants, "constexpr")}
        source = ASTSource(function, whole, constexprs=constants)
        made = triton.compile(source, target=GPUTarget(backend, arch, int(threads)))
        image = Path(folder) / f"kernel{number}"
        image.write_bytes(made.kernel)
        found[label] = {
            "file": image.name,
            "name": made.metadata.name,
            "warps": made.metadata.num_warps,
            "shared": made.metadata.shared,
            "parameters": list(signature.values()),
        }
    Path(result).write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
