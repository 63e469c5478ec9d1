"""What tests of code for Adreno share: targets, disassembly, kernels as LLVM IR."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache

import pytest

from ugpu.compiler.codegen.process.objects import compile_text
from ugpu.hcq.objects.ir3_object import Ir3Kernel, parse_ir3
from ugpu.hcq.state.target import TargetSpec
from ugpu.qcom import chips

MESA = importlib.util.find_spec("tinymesa") is not None and sys.platform == "linux"
needs_mesa = pytest.mark.skipif(not MESA, reason="tinymesa is not installed")


@cache
def target(chip: str) -> TargetSpec:
    return chips.facts(chip).target()


def compiled(text: str, chip: str) -> Ir3Kernel:
    """The kernel of a module, compiled in a child process as programs compile it."""
    return kernel_of(compile_text(text, target(chip)))


def kernel_of(image: bytes) -> Ir3Kernel:
    """The one kernel of an object."""
    (kernel,) = parse_ir3(image)
    return kernel


def disassembly(kernel: Ir3Kernel, chip: str) -> str:
    """Instructions up to `end`, by Mesa's disassembler, under a line of facts."""
    from ugpu.compiler.codegen.adreno.mesa import library

    facts = chips.facts(chip)
    text = library().disassembly(kernel.code, facts.gpu_id or 100 * facts.generation)
    lines = text.splitlines()
    code = lines[: lines.index("end") + 1]
    head = (
        f"; {kernel.name}: {kernel.full_registers} full, {kernel.half_registers} half registers, "
        f"{kernel.constants} vec4 of constants, {kernel.local_size} bytes of local memory, "
        f"{kernel.private_size} of private memory, branch stack {kernel.branch_stack}, "
        f"{'double' if kernel.double_wave else 'single'} wave"
    )
    return "\n".join([head, *code]) + "\n"


def module(body: str, parameters: str, threads: int = 64, extra: str = "") -> str:
    """LLVM IR of a kernel `k`. body: with %i, the number of the thread in the grid."""
    return f"""{extra}
define spir_kernel void @k({parameters}) #0 {{
entry:
  %thread = call i32 @adreno.thread()
  %group = call i32 @adreno.group.x()
  %first = mul i32 %group, {threads}
  %i = add i32 %first, %thread
  %wide = zext i32 %i to i64
{body}
  ret void
}}
declare i32 @adreno.thread()
declare i32 @adreno.group.x()
declare void @adreno.barrier()
declare i32 @adreno.exchange(i32, i32)
declare i1 @adreno.any(i1)
declare i1 @adreno.all(i1)
declare i32 @adreno.mulhi(i32, i32)
declare float @llvm.fma.f32(float, float, float)
declare half @llvm.fma.f16(half, half, half)
declare i32 @llvm.fptosi.sat.i32.f32(float)
declare float @llvm.maximum.f32(float, float)
attributes #0 = {{ nounwind "adreno-threads"="{threads}" }}
"""


_FETCHING = (
    "ptr addrspace(1) noalias writeonly align 4 %out, "
    "ptr addrspace(1) noalias readonly align 4 dereferenceable({size}) %in"
)


def fetching(kind: str, size: int, align: int, step: int) -> str:
    """LLVM IR: out[i] = in[step * (i ^ 5)], the element being `kind`, `size` bytes."""
    marks = f"align {align}, !invariant.load !0, !adreno.texel !0"
    total = {"float": 256, "<4 x float>": 1024, "half": 256, "<4 x half>": 512, "<2 x half>": 256}[
        kind
    ]
    body = f"""
  %other = xor i32 %i, 5
  %from = mul nuw nsw i32 %other, {step}
  %far = zext nneg i32 %from to i64
  %source = getelementptr inbounds i8, ptr addrspace(1) %in, i64 %far
  %value = load {kind}, ptr addrspace(1) %source, {marks}
  %to = mul nuw nsw i32 %i, {size}
  %wideto = zext nneg i32 %to to i64
  %target = getelementptr inbounds i8, ptr addrspace(1) %out, i64 %wideto
  store {kind} %value, ptr addrspace(1) %target, align {align}"""
    return module(body, _FETCHING.format(size=total)) + "!0 = !{}\n"
