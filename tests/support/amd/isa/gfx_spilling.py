"""A kernel that keeps more values live than it has registers for, so that LLVM spills them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.support.amd.isa.gfx_corpus import Compiled

LIVE = 180  # values
REGISTERS = 96  # vector registers that LLVM may use
ROW = 64  # lanes of a group, and values of a row
_STEP = 61  # the value that is added to each, counted from it


def spilling_kernel() -> str:
    """Return IR of `k(out, values, turns)`; out and values: float[LIVE][ROW], one group of ROW.

    Each turn makes of every value its half plus another one of the same lane; see `live_values`.
    """
    live = range(LIVE)
    lines = [
        "declare i32 @llvm.amdgcn.workitem.id.x()",
        "define amdgpu_kernel void @k(ptr addrspace(1) %out, ptr addrspace(1) %in, i32 %n) #0 {",
        "entry:",
        "  %t = call i32 @llvm.amdgcn.workitem.id.x()",
    ]
    for k in live:
        lines += [
            f"  %i{k} = add i32 %t, {ROW * k}",
            f"  %p{k} = getelementptr float, ptr addrspace(1) %in, i32 %i{k}",
            f"  %x{k} = load volatile float, ptr addrspace(1) %p{k}",
        ]
    lines += ["  br label %loop", "loop:", "  %c = phi i32 [ %n, %entry ], [ %c1, %loop ]"]
    lines += [f"  %v{k} = phi float [ %x{k}, %entry ], [ %w{k}, %loop ]" for k in live]
    for k in live:
        lines += [
            f"  %m{k} = fmul float %v{k}, 0.5",
            f"  %w{k} = fadd float %m{k}, %v{(k + _STEP) % LIVE}",
        ]
    lines += [
        "  %c1 = sub i32 %c, 1",
        "  %more = icmp ne i32 %c1, 0",
        "  br i1 %more, label %loop, label %done",
        "done:",
    ]
    for k in live:
        lines += [
            f"  %q{k} = getelementptr float, ptr addrspace(1) %out, i32 %i{k}",
            f"  store float %w{k}, ptr addrspace(1) %q{k}",
        ]
    attributes = f'"amdgpu-flat-work-group-size"="{ROW},{ROW}" "amdgpu-num-vgpr"="{REGISTERS}"'
    lines += ["  ret void", "}", f'attributes #0 = {{ "amdgpu-no-implicitarg-ptr" {attributes} }}']
    return "\n".join(lines)


def live_values(values: NDArray[np.float32], turns: int) -> NDArray[np.float32]:
    """Return what the kernel computes of float[LIVE][ROW]."""
    for _ in range(turns):
        values = values * np.float32(0.5) + np.roll(values, -_STEP, 0)
    return values


def loop_length(kernel: Compiled) -> int:
    """Return the number of instructions of a turn, all of them counted."""
    branch = [line for line in kernel.listing if line.text.startswith("s_cbranch")][-1]
    distance = branch.words[0] & 0xFFFF
    start = branch.pc + 4 + 4 * (distance - ((distance & 0x8000) << 1))
    return sum(start <= line.pc <= branch.pc for line in kernel.listing)
