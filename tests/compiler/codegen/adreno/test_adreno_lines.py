"""The patterns for common lines of LLVM IR read what the reader of tokens reads."""

from __future__ import annotations

from unittest import mock

import pytest

from tests.support.adreno import ir3_run
from tests.support.adreno.mesa import needs_mesa, target
from ugpu.compiler.codegen.adreno import build
from ugpu.compiler.codegen.adreno.llvm import lines
from ugpu.compiler.codegen.adreno.llvm.syntax import Instruction
from ugpu.compiler.codegen.adreno.llvm.text import Function, read_module
from ugpu.compiler.codegen.emit import emit
from ugpu.compiler.codegen.process.objects import compile_here
from ugpu.hcq.errors import CompileError

READ = lines.Lines.read
SHARE, TURN = 32, 5
# Operations whose lines are rare or short, and attributes that only the reader of tokens accepts.
RARE = {"br", "ret", "fneg", "call", "freeze", "atomicrmw", "cmpxchg", "extractvalue", "fence",
        "unreachable", "shufflevector"}  # fmt: skip

BODY = """
  %a = add nuw nsw i32 %x, -7
  %b = fmul reassoc contract float 0x3FB99999A0000000, %f
  %c = fadd float %f, 1.500000e+00
  %d = icmp ult i32 %x, 12
  %e = select i1 %d, float %f, float 0.000000e+00
  %f2 = fptrunc float %f to half
  %g = zext nneg i32 %x to i64
  %h = getelementptr inbounds nuw <4 x float>, ptr addrspace(1) %p, i64 %g
  %i = load <4 x float>, ptr addrspace(1) %h, align 16, !invariant.load !0, !adreno.texel !0
  %j = extractelement <4 x float> %i, i32 3
  %k = insertelement <4 x float> zeroinitializer, float %j, i32 0
  %l = insertelement <4 x float> <float 1.0, float 2.0, float 3.0, float 4.0>, float %j, i32 0
  %m = getelementptr inbounds float, ptr addrspace(3) @local, i32 %x
  store float %j, ptr addrspace(3) @local, align 4
  store <4 x float> splat (float 1.000000e+00), ptr addrspace(1) %h, align 4
  %n = tail call float @llvm.fma.f32(float %f, float %j, float -0.000000e+00)
  %o = call fast float @llvm.fabs.f32(float %f) #1
  tail call void @adreno.barrier()
  call void @adreno.barrier()
  %q = call range(i32 0, 256) i32 @adreno.thread()
  %r = call i32 @adreno.lane(i32 noundef %x, i32 0)
  %s = load atomic i32, ptr addrspace(1) %p syncscope("agent") monotonic, align 4
  %t = load volatile i32, ptr addrspace(3) @local, align 4
  %u = fcmp reassoc olt <2 x half> %hh, zeroinitializer
  %v = fmul half 0xH3C00, %f2
  %"quoted name" = add i32 %x, 1
  %w = xor i1 %d, true
  %y = sub i8 %z, undef
"""


def function(text: str) -> Function:
    (found,) = read_module(
        "@local = internal addrspace(3) global [64 x float] undef, align 16\n"
        "define void @k(ptr addrspace(1) %p, i32 %x) #0 {\nentry:\n" + text + "\n}\n"
    )
    return found


def both(text: str) -> tuple[list[Function], list[Function], set[str]]:
    """What is read with and without the patterns, and the operations that they did not read."""
    left: set[str] = set()

    def noted(self: lines.Lines, line: str) -> Instruction | None:
        found = READ(self, line)
        if found is None:
            words = line.split(" = ")[-1].split()
            left.add(words[1] if words[0] == "tail" else words[0])
        return found

    with mock.patch.object(lines.Lines, "read", noted):
        fast = read_module(text)
    with mock.patch.object(lines.Lines, "read", lambda self, line: None):
        return fast, read_module(text), left


def test_every_form_reads_alike() -> None:
    fast = function(BODY)
    with mock.patch.object(lines.Lines, "read", lambda self, line: None):
        slow = function(BODY)
    assert fast == slow
    assert [one.line for one in fast.blocks["%entry"]] == BODY.strip("\n").split("\n")


def test_labels_and_phis_read_alike() -> None:
    text = """  br label %head
head:                                             ; preds = %head, %entry
  %n = phi i32 [ 0, %entry ], [ %more, %head ]
  %v = phi <2 x float> [ zeroinitializer, %entry ], [ %v, %head ]
  %more = add i32 %n, 1
  br i1 true, label %head, label %end
end:
  ret void"""
    fast = function(text)
    with mock.patch.object(lines.Lines, "read", lambda self, line: None):
        assert fast == function(text)
    (first, *_) = fast.blocks["%head"]
    assert first.targets == ("%entry", "%head") and first.operands[0].lanes == (0,)


@pytest.mark.parametrize("line", [
    "  %a = add i7 %x, 1",
    "  %a = add i32 %x, pear",
    "  %a = load float, ptr addrspace(2) %p, align 4",
    "  store float %f, ptr addrspace(3) @elsewhere, align 4",
    "  %a = getelementptr [4 x i8], ptr addrspace(1) %p, i64 1",
    "  %a = add i32 %x",
])  # fmt: skip
def test_a_line_that_cannot_be_read_is_shown(line: str) -> None:
    with pytest.raises(CompileError) as found:
        function(line)
    assert found.value.facts["code"] == line.strip()


@needs_mesa
@pytest.mark.parametrize("chip", ["a630", "a740"])
def test_a_share_of_the_corpus_reads_alike(chip: str) -> None:
    texts: list[str] = []

    def noted(text: str) -> list[Function]:
        texts.append(text)
        return read_module(text)

    programs = ir3_run.programs(chip, TURN, SHARE)
    kernels = {step.kernel.name: step.kernel for one in programs for step in one.launches}
    with mock.patch.object(build, "read_module", noted):
        for kernel in kernels.values():
            compile_here(emit(kernel, target(chip)), target(chip))
    assert len(texts) > 12
    for text in texts:
        fast, slow, left = both(text)
        assert fast == slow
        assert left <= RARE
