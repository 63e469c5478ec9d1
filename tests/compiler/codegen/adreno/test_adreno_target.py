"""Machine code for Adreno: the operation corpus, what the instructions are, what is refused."""

from __future__ import annotations

import base64
import io
import json
import textwrap
from dataclasses import replace

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import Golden
from tests.support import kernels
from tests.support.adreno import ir3_run
from tests.support.adreno.mesa import compiled, disassembly, kernel_of, module, needs_mesa, target
from tests.support.compiler.compiler_cases import buffer, kernels_of
from ugpu.compiler.codegen.emit import emit
from ugpu.compiler.codegen.process.objects import compile_text
from ugpu.compiler.dtype import float16, float32
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.kernel.ir import Kernel
from ugpu.hcq.errors import BadCodeObject, CompileError
from ugpu.hcq.objects.ir3_object import CODE_ALIGN, Ir3Kernel, Ir3Parameter, pack_ir3, parse_ir3
from ugpu.qcom import chips

SHARE = 32  # the fast suite compiles every so many cases of the corpus
POINTERS = "ptr addrspace(1) %out, ptr addrspace(1) %in"


def corpus_kernels(chip: str, turn: int = 0, every: int = 1) -> dict[str, Kernel]:
    """The kernels of the corpus' cases, or of one case of so many."""
    programs = ir3_run.programs(chip, turn, every)
    return {step.kernel.name: step.kernel for made in programs for step in made.launches}


def check_object(kernel: Kernel, made: Ir3Kernel, chip: str) -> None:
    """The object says of the kernel what the kernel says, and of the chip what its facts say."""
    facts = chips.facts(chip)
    assert (made.name, made.threads) == (kernel.name, kernel.block)
    assert (made.chip_id, made.generation) == (facts.chip_ids[0], facts.generation)
    addresses = [Ir3Parameter(m.name, 8 * n, 8, True) for n, m in enumerate(kernel.parameters)]
    assert list(made.parameters) == addresses
    local = sum(m.count * m.dtype.itemsize for m in kernel.locals if m.space == "local")
    assert local <= made.local_size <= facts.local_memory
    assert made.constants <= facts.constants
    assert made.kernarg_size // 16 <= made.immediates_at
    assert made.immediates_at * 4 + len(made.immediates) <= made.constants * 4
    assert made.full_registers <= 48 and made.merged_registers
    waves = 2 if made.double_wave else 1
    assert made.full_registers * waves <= facts.registers
    assert made.barrier == ("Barrier(" in repr(kernel.body))


@needs_mesa
@pytest.mark.parametrize(("chip", "turn"), [("a630", 3), ("a660", 8), ("a740", 13), ("a750", 18)])
def test_a_share_of_the_corpus(chip: str, turn: int) -> None:
    share = corpus_kernels(chip, turn, SHARE)
    assert len(share) > 12
    for kernel in share.values():
        image = compile_text(emit(kernel, target(chip)), target(chip))
        check_object(kernel, kernel_of(image), chip)


@needs_mesa
@pytest.mark.slow
@pytest.mark.parametrize("chip", ["a630", "a740"])  # one of each generation; shares run on others
def test_the_whole_corpus_compiles(chip: str) -> None:
    for kernel in corpus_kernels(chip).values():
        image = compile_text(emit(kernel, target(chip)), target(chip))
        check_object(kernel, kernel_of(image), chip)


@needs_mesa
@pytest.mark.parametrize("chip", chips.names())
def test_every_chip_compiles(chip: str) -> None:
    made = compiled(module("""
  %from = getelementptr float, ptr addrspace(1) %in, i64 %wide
  %x = load float, ptr addrspace(1) %from, align 4
  %to = getelementptr float, ptr addrspace(1) %out, i64 %wide
  store float %x, ptr addrspace(1) %to, align 4""", POINTERS), chip)  # fmt: skip
    assert made.chip_id == chips.facts(chip).chip_ids[0] and made.instructions > 4


# ---- goldens -----------------------------------------------------------------------------------

LOOP = """
  br label %head
head:
  %n = phi i32 [ 0, %entry ], [ %next, %body ]
  %sum = phi float [ 0.0, %entry ], [ %more, %body ]
  %test = icmp ult i32 %n, %count
  br i1 %test, label %body, label %done
body:
  %at = mul nuw i32 %n, 4
  %far = zext i32 %at to i64
  %from = getelementptr i8, ptr addrspace(1) %in, i64 %far
  %h = load half, ptr addrspace(1) %from, align 4
  %f = fpext half %h to float
  %more = call float @llvm.fma.f32(float %f, float %f, float %sum)
  %next = add i32 %n, 1
  br label %head
done:
  %to = getelementptr float, ptr addrspace(1) %out, i64 %wide
  store float %sum, ptr addrspace(1) %to, align 4"""
LOCAL = """
  %mine = getelementptr i32, ptr addrspace(3) @k.m, i32 %thread
  store i32 %i, ptr addrspace(3) %mine, align 4
  call void @adreno.barrier()
  %turned = sub i32 63, %thread
  %theirs = getelementptr i32, ptr addrspace(3) @k.m, i32 %turned
  %x = load i32, ptr addrspace(3) %theirs, align 4
  %old = atomicrmw umax ptr addrspace(3) @k.m, i32 %x monotonic
  %sum = atomicrmw add ptr addrspace(1) %in, i32 %old monotonic
  %to = getelementptr i32, ptr addrspace(1) %out, i64 %wide
  store i32 %sum, ptr addrspace(1) %to, align 4"""
LANES = """
  %a = call i32 @adreno.exchange(i32 %i, i32 1)
  %b = call i32 @adreno.exchange(i32 %a, i32 32)
  %test = icmp eq i32 %b, 5
  %any = call i1 @adreno.any(i1 %test)
  %word = zext i1 %any to i32
  %sum = add i32 %b, %word
  %to = getelementptr i32, ptr addrspace(1) %out, i64 %wide
  store i32 %sum, ptr addrspace(1) %to, align 4"""
HALVES = """
  %from = getelementptr <4 x half>, ptr addrspace(1) %in, i64 %wide
  %x = load <4 x half>, ptr addrspace(1) %from, align 8
  %y = fmul <4 x half> %x, %x
  %z = fadd <4 x half> %y, splat (half 1.0)
  %to = getelementptr <4 x half>, ptr addrspace(1) %out, i64 %wide
  store <4 x half> %z, ptr addrspace(1) %to, align 8"""
BRANCHES = """
  %odd = and i32 %i, 1
  %test = icmp eq i32 %odd, 0
  br i1 %test, label %yes, label %no
yes:
  %to = getelementptr i32, ptr addrspace(1) %out, i64 %wide
  %q = udiv i32 %i, 7
  store i32 %q, ptr addrspace(1) %to, align 4
  br label %done
no:
  %at = getelementptr i32, ptr addrspace(1) %in, i64 %wide
  store i32 %i, ptr addrspace(1) %at, align 4
  br label %done
done:"""
SHARED = "@k.m = internal addrspace(3) global [64 x i32] poison, align 64"
GOLDENS = {
    "loop": module(LOOP, POINTERS + ", i32 %count"),
    "local": module(LOCAL, POINTERS, extra=SHARED),
    "lanes": module(LANES, POINTERS),
    "halves": module(HALVES, POINTERS),
    "branches": module(BRANCHES, POINTERS),
}


@needs_mesa
@pytest.mark.golden
@pytest.mark.parametrize("chip", ["a630", "a740"])
@pytest.mark.parametrize("name", GOLDENS)
def test_instructions(golden: Golden, name: str, chip: str) -> None:
    text = disassembly(compiled(GOLDENS[name], chip), chip)
    golden.check(f"compiler/adreno/{name}_{chip}.txt", text)


@needs_mesa
def test_float16_is_added_up_in_float32() -> None:
    numbers = graph.cast(buffer(64, 256, dtype=float16), float32)
    root = graph.cast(graph.reduce("sum", numbers, (1,)), float16)
    (kernel,) = kernels_of(root, target("a660"))
    image = compile_text(emit(kernel, target("a660")), target("a660"))
    text = disassembly(kernel_of(image), "a660")
    assert "ldg.a.u16" in text or "ldg.u16" in text or "ldg.a.u32" in text
    assert "cov.f16f32" in text and "add.f" in text and "cov.f32f16" in text


@needs_mesa
def test_addresses_are_added_by_the_load() -> None:
    """A vector of four is one load, whose offset is an index in dwords."""
    root = graph.elementwise("add", float32, *(buffer(4096, dtype=float32) for _ in range(2)))
    (kernel,) = kernels_of(root, target("a630"))
    image = compile_text(emit(kernel, target("a630")), target("a630"))
    text = disassembly(kernel_of(image), "a630")
    assert text.count("ldg.a.u32") == 2 and text.count("stg.a.u32") == 1
    assert text.count("<<2)], 4") >= 2


# ---- what is refused ---------------------------------------------------------------------------


@needs_mesa
@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("  %x = fptrunc double 1.0 to float", "type 'double' is not supported"),
        ("  %x = call i32 @adreno.exchange(i32 %i, i32 %j)", "undefined value"),
        ("  %x = atomicrmw fadd ptr addrspace(1) %out, float 1.0 monotonic", "atomicrmw fadd"),
        ("  store i32 1, ptr null", "address space 0"),
        ('  call void asm sideeffect "nop", ""()', "expected"),
    ],
)
def test_what_cannot_be_compiled_is_named(body: str, complaint: str) -> None:
    with pytest.raises(CompileError, match=complaint):
        compiled(module(body, POINTERS), "a630")


@needs_mesa
def test_the_threads_of_a_group_must_be_declared() -> None:
    text = module("", POINTERS).replace('"adreno-threads"="64"', "")
    with pytest.raises(CompileError, match="adreno-threads"):
        compiled(text, "a630")


def sample(name: str = "k") -> Ir3Kernel:
    return Ir3Kernel(
        name=name, chip_id=0x06030001, generation=6, threads=64,
        parameters=(Ir3Parameter("out", 0, 8, True), Ir3Parameter("n", 8, 4, False, "integer"),
                    Ir3Parameter("h", 12, 2, False, "float"), Ir3Parameter("b", 14, 1, False)),
        instructions=2, full_registers=1, half_registers=0, merged_registers=True, constants=4,
        immediates=(7,), immediates_at=1, local_size=256, private_size=0, private_per_wave=True,
        branch_stack=0, double_wave=False, early_preamble=False, barrier=False,
        group_register=0xC0, thread_register=0, code=bytes(range(128)),
    )  # fmt: skip


SAMPLES = (sample(), replace(sample("other"), code=bytes(range(64))))
OBJECT = pack_ir3(SAMPLES)


def test_an_object_is_read_as_it_was_written() -> None:
    assert parse_ir3(OBJECT) == SAMPLES
    assert sample().kernarg_size == 15


def test_an_object_is_an_elf_file_with_a_section_for_each_kernel() -> None:
    elf = ELFFile(io.BytesIO(OBJECT))
    assert elf["e_type"] == "ET_REL" and elf["e_machine"] == 0x6972
    sections = {section.name: section for section in elf.iter_sections()}
    for kernel in SAMPLES:
        section = sections[f".text.{kernel.name}"]
        assert section.data() == kernel.code and section["sh_offset"] % CODE_ALIGN == 0
        facts = json.loads(sections[f".ir3.{kernel.name}"].data())
        assert facts["threads"] == kernel.threads


@given(place=st.integers(0, len(OBJECT) - 1), bit=st.integers(0, 7))
def test_a_damaged_object_is_refused(place: int, bit: int) -> None:
    image = bytearray(OBJECT)
    image[place] ^= 1 << bit
    with pytest.raises(BadCodeObject):
        parse_ir3(bytes(image))


@given(size=st.integers(0, len(OBJECT) - 1))
def test_a_truncated_object_is_refused(size: int) -> None:
    with pytest.raises(BadCodeObject):
        parse_ir3(OBJECT[:size])


@pytest.mark.parametrize(
    ("kernels", "complaint"),
    [
        ((), "has no kernels"),
        ((replace(sample(), code=b""),), "code must be a multiple"),
        ((replace(sample(), code=bytes(12)),), "code must be a multiple"),
        ((replace(sample(), threads=4096),), "threads is out of range"),
        ((replace(sample(), parameters=(Ir3Parameter("n", 2, 4, False),)),), "malformed"),
        ((replace(sample(), parameters=(Ir3Parameter("n", 0, 3, False),)),), "malformed"),
    ],
)
def test_an_object_with_wrong_facts_is_refused(
    kernels: tuple[Ir3Kernel, ...], complaint: str
) -> None:
    with pytest.raises(BadCodeObject, match=complaint):
        parse_ir3(pack_ir3(kernels))


# ---- modules of several kernels, parameters of all sizes -----------------------------------------

SEVERAL = """
@a.m = internal addrspace(3) global [64 x i32] poison, align 64
@b.m = internal addrspace(3) global [16 x i32] poison, align 64
define internal i32 @thread() alwaysinline {
  %t = call i32 @adreno.thread()
  ret i32 %t
}
define spir_kernel void @a(ptr addrspace(1) %out) #0 {
  %t = call i32 @thread()
  %m = getelementptr i32, ptr addrspace(3) @a.m, i32 %t
  store i32 %t, ptr addrspace(3) %m, align 4
  call void @adreno.barrier()
  %x = load i32, ptr addrspace(3) @a.m, align 4
  store i32 %x, ptr addrspace(1) %out, align 4
  ret void
}
define spir_kernel void @b(ptr addrspace(1) %out, i8 %x, i16 %y, half %z, i64 %w) #1 {
  store i32 1, ptr addrspace(3) @b.m, align 4
  call void @adreno.barrier()
  %l = load i32, ptr addrspace(3) @b.m, align 4
  %a = zext i8 %x to i64
  %b = sext i16 %y to i64
  %c = fptosi half %z to i64
  %d = zext i32 %l to i64
  %ab = add i64 %a, %b
  %abc = add i64 %ab, %c
  %abcd = add i64 %abc, %d
  %sum = add i64 %abcd, %w
  store i64 %sum, ptr addrspace(1) %out, align 8
  ret void
}
declare i32 @adreno.thread()
declare void @adreno.barrier()
attributes #0 = { nounwind "adreno-threads"="64" }
attributes #1 = { nounwind "adreno-threads"="32" }
"""


@needs_mesa
@pytest.mark.parametrize("chip", ["a630", "a740"])
def test_a_module_of_several_kernels(chip: str) -> None:
    first, second = parse_ir3(compile_text(SEVERAL, target(chip)))
    assert (first.name, first.threads, first.local_size) == ("a", 64, 256)
    assert (second.name, second.threads, second.local_size) == ("b", 32, 64)
    places = [(one.name, one.offset, one.size) for one in second.parameters]
    assert places == [("out", 0, 8), ("x", 8, 1), ("y", 10, 2), ("z", 12, 2), ("w", 16, 8)]


@needs_mesa
@pytest.mark.golden
@pytest.mark.parametrize(("generation", "chip"), [(6, "a618"), (7, "a730")])
def test_the_contract_suites_kernels(golden: Golden, generation: int, chip: str) -> None:
    """The file that machines without Mesa's compiler use."""
    image = compile_text(kernels.ADRENO, target(chip))
    lines = textwrap.wrap(base64.b64encode(image).decode(), 96)
    golden.check(kernels.adreno_file(generation), "\n".join(lines) + "\n")


@pytest.mark.parametrize("name", chips.names())
def test_facts_of_chips(name: str) -> None:
    facts = chips.facts(name)
    assert facts.name == name and facts.generation in (6, 7) and facts.products
    spec = facts.target()
    assert spec.name == f"adreno-{name}" and spec.wave_size == 64
    # the usual chip id of most counts as the GPU is named: core, major, minor
    if facts.chip_ids[0] < 0x10000000:
        digits = [facts.chip_ids[0] >> shift & 0xFF for shift in (24, 16, 8)]
        core, major, minor = digits
        assert core * 100 + major * 10 + minor in (facts.gpu_id, facts.gpu_id // 10 * 10)


def test_unknown_chips_are_refused() -> None:
    with pytest.raises(KeyError, match="expected one of a618"):
        chips.facts("a500")
