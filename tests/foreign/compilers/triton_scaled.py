"""A product with scales of blocks in Triton's language, compiled for sm_120 without a GPU.

    python -m tests.foreign.compilers.triton_scaled RESULT

RESULT, a JSON file, holds for each of CASES the PTX and the bytes of shared memory it wants.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.foreign.compilers.scaled_cases import CASES, EDGE, K, Scaled


@triton.jit
def scaled(
    a, scale_a, b, scale_b, out, K: tl.constexpr, EDGE: tl.constexpr, FIRST: tl.constexpr,
    SECOND: tl.constexpr, IN_A: tl.constexpr, IN_B: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    # Factors lie along k: A by its rows, B by its columns. IN_A, IN_B: elements of a byte.
    place = tl.arange(0, EDGE)
    along_a, along_b = tl.arange(0, K // IN_A), tl.arange(0, K // IN_B)
    part = tl.arange(0, K // EACH)
    left = tl.load(a + place[:, None] * (K // IN_A) + along_a[None, :])
    right = tl.load(b + place[None, :] * (K // IN_B) + along_b[:, None])
    scales_left = tl.load(scale_a + place[:, None] * (K // EACH) + part[None, :])
    scales_right = tl.load(scale_b + place[:, None] * (K // EACH) + part[None, :])
    total = tl.dot_scaled(left, scales_left, FIRST, right, scales_right, SECOND)
    tl.store(out + place[:, None] * EDGE + place[None, :], total)


def compiled(case: Scaled) -> dict[str, Any]:
    """Return the PTX of a case, its shared memory and the matrix instructions in it."""
    types = {"e4m3": "*fp8e4nv", "e5m2": "*fp8e5", "e2m1": "*u8"}
    scales = "*fp8e4nv" if case.scale == "ue4m3" else "*u8"
    constants = {
        "K": K, "EDGE": EDGE, "FIRST": case.first, "SECOND": case.second, "IN_A": case.in_byte(0),
        "IN_B": case.in_byte(1), "EACH": case.each,
    }  # fmt: skip
    signature = {
        "a": types[case.first], "scale_a": scales, "b": types[case.second], "scale_b": scales,
        "out": "*fp32", **dict.fromkeys(constants, "constexpr"),
    }  # fmt: skip
    made = triton.compile(
        ASTSource(scaled, signature, constants), target=GPUTarget("cuda", 120, 32),
        options={"num_warps": 4},
    )  # fmt: skip
    ptx = made.asm["ptx"]
    return {"ptx": ptx, "shared": made.metadata.shared,
            "instructions": sorted(set(re.findall(r"mma\.sync[\w.:]*", ptx)))}  # fmt: skip


if __name__ == "__main__":
    found = {name: compiled(case) for name, case in CASES.items()}
    Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")
