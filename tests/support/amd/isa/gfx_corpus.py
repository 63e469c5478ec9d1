"""Kernels in LLVM IR, compiled for gfx1100 by llvmlite: real machine code for decoder and cores.

Every kernel has one argument list, `(ptr out, ptr a, ptr b, i32 n)` (global pointers, kernarg
offsets 0, 8, 16, 24), works on element `workitem.id.x` and stores its results behind `out`, so that
all can be run by one harness.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import llvmlite.binding as llvm
from elftools.elf.elffile import ELFFile

from tests.support.amd.isa.gfx_corpus_control import control
from tests.support.amd.isa.gfx_corpus_intrinsics import calls, matrices
from tests.support.amd.isa.gfx_corpus_memory import atomics, memory
from ugpu.hcq.disk.objects import kept
from ugpu.hcq.objects.jit import llvm_version

TRIPLE = "amdgcn-amd-amdhsa"


@dataclass(frozen=True)
class Line:
    """One instruction as LLVM shows it. pc: byte offset in `Compiled.text`."""

    pc: int
    text: str
    words: tuple[int, ...]


@dataclass(frozen=True)
class Compiled:
    """A compiled kernel: the object file, its .text section and LLVM's listing of it."""

    image: bytes
    text: bytes
    listing: tuple[Line, ...]


@cache
def _machine(options: str, cpu: str) -> llvm.TargetMachine:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(TRIPLE)
    return target.create_target_machine(cpu=cpu, features="+dumpcode" + options, opt=3)


@cache
def compile_ir(text: str, options: str = "", cpu: str = "gfx1100") -> Compiled:
    """Compile a module. options: further target features, such as ",-real-true16"."""
    make = partial(_object, text, options, cpu)
    image = kept(make, Path(__file__), llvm_version(), cpu, options, text)
    sections = ELFFile(io.BytesIO(image))
    code = sections.get_section_by_name(".text").data()
    shown = sections.get_section_by_name(".AMDGPU.disasm").data().decode()
    return Compiled(image, code, tuple(_listing(shown, code)))


def _object(text: str, options: str, cpu: str) -> bytes:
    module = llvm.parse_assembly(f'target triple = "{TRIPLE}"\n{text}')
    machine = _machine(options, cpu)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(2))
    builder.getModulePassManager().run(module, builder)
    return bytes(machine.emit_object(module))


def _listing(shown: str, code: bytes) -> list[Line]:
    """Find where each listed instruction lies: they follow each other, but for alignment.

    The listing is written before branches and relocations are resolved; words come from the code.
    """
    lines: list[Line] = []
    pc = 0
    for line in shown.splitlines():
        text, separator, numbers = line.rpartition(";")
        listed = tuple(int(word, 16) for word in numbers.split()) if separator else ()
        if not listed:
            continue
        size = 4 * len(listed)
        while not _same(text, listed, struct.unpack_from(f"<{len(listed)}I", code, pc)):
            pc += 4
        words = struct.unpack_from(f"<{len(listed)}I", code, pc)
        lines.append(Line(pc, " ".join(text.split()), words))
        pc += size
    return lines


def _same(text: str, listed: tuple[int, ...], found: tuple[int, ...]) -> bool:
    if "branch" in text or "s_call" in text:
        return listed[0] >> 16 == found[0] >> 16
    if "@" in text:  # a relocated literal
        return listed[0] == found[0]
    return listed == found


def kernel(
    body: str, declares: str = "", name: str = "k", inputs: str = "float", result: str = "float"
) -> str:
    """Wrap a body that computes %r (type `result`) from %x, %y (type `inputs`), %i, %n.

    %out, %a, %b are the pointers; %pa, %pb, %po point at the work-item's own elements.
    """
    return f"""
declare i32 @llvm.amdgcn.workitem.id.x()
{declares}
define amdgpu_kernel void @{name}(ptr addrspace(1) %out, ptr addrspace(1) %a,
    ptr addrspace(1) %b, i32 %n) #0 {{
  %i = call i32 @llvm.amdgcn.workitem.id.x()
  %pa = getelementptr inbounds {inputs}, ptr addrspace(1) %a, i32 %i
  %pb = getelementptr inbounds {inputs}, ptr addrspace(1) %b, i32 %i
  %po = getelementptr inbounds {result}, ptr addrspace(1) %out, i32 %i
  %x = load {inputs}, ptr addrspace(1) %pa
  %y = load {inputs}, ptr addrspace(1) %pb
{body}
  store {result} %r, ptr addrspace(1) %po
  ret void
}}
attributes #0 = {{ "amdgpu-flat-work-group-size"="1,256" }}
"""


def _binary() -> dict[str, str]:
    found = {}
    for kind in ("float", "half", "double", "<2 x half>", "bfloat"):
        for operation in ("fadd", "fsub", "fmul", "fdiv", "frem"):
            if operation == "frem" and kind in ("<2 x half>", "bfloat"):
                continue
            found[f"{operation} {kind}"] = kernel(
                f"  %r = {operation} {kind} %x, %y", inputs=kind, result=kind
            )
    for kind in ("i32", "i16", "i64", "i8", "<2 x i16>"):
        for operation in (
            "add", "sub", "mul", "udiv", "sdiv", "urem", "srem", "and", "or", "xor", "shl", "lshr",
            "ashr",
        ):  # fmt: skip
            if kind == "<2 x i16>" and "div" in operation + operation.replace("rem", "div"):
                continue
            found[f"{operation} {kind}"] = kernel(
                f"  %r = {operation} {kind} %x, %y", inputs=kind, result=kind
            )
    return found


def _compare() -> dict[str, str]:
    found = {}
    for kind in ("float", "half", "double"):
        for condition in (
            "oeq", "ogt", "oge", "olt", "ole", "one", "ord", "ueq", "ugt", "uge", "ult", "ule",
            "une", "uno",
        ):  # fmt: skip
            found[f"fcmp {condition} {kind}"] = kernel(
                f"  %c = fcmp {condition} {kind} %x, %y\n  %r = zext i1 %c to i32",
                inputs=kind,
                result="i32",
            )
    for kind in ("i32", "i16", "i64"):
        for condition in ("eq", "ne", "ugt", "uge", "ult", "ule", "sgt", "sge", "slt", "sle"):
            found[f"icmp {condition} {kind}"] = kernel(
                f"  %c = icmp {condition} {kind} %x, %y\n  %r = select i1 %c, {kind} %y, {kind} %x",
                inputs=kind,
                result=kind,
            )
    for kind, suffix in (("float", "f32"), ("half", "f16"), ("double", "f64")):
        for mask in (3, 0x204, 0x1F8, 0x90):
            found[f"class {mask} {kind}"] = kernel(
                f"  %c = call i1 @llvm.is.fpclass.{suffix}({kind} %x, i32 {mask})\n"
                "  %r = zext i1 %c to i32",
                f"declare i1 @llvm.is.fpclass.{suffix}({kind}, i32)",
                inputs=kind,
                result="i32",
            )
    return found


def _intrinsics() -> dict[str, str]:
    found = {}
    unary = {
        "f32": "floor ceil trunc rint nearbyint roundeven round fabs sqrt exp2 exp exp10 log2 log "
        "log10 sin cos canonicalize",
        "f16": "floor ceil trunc rint round fabs sqrt exp2 exp log2 log sin cos canonicalize",
        "f64": "floor ceil trunc rint round fabs sqrt canonicalize",
    }
    names = {"f32": "float", "f16": "half", "f64": "double", "v2f16": "<2 x half>"}
    for suffix, operations in unary.items():
        for operation in operations.split():
            kind = names[suffix]
            found[f"{operation} {suffix}"] = kernel(
                f"  %r = call {kind} @llvm.{operation}.{suffix}({kind} %x)",
                f"declare {kind} @llvm.{operation}.{suffix}({kind})",
                inputs=kind,
                result=kind,
            )
    for suffix, kind in names.items():
        for operation in ("minnum", "maxnum", "copysign", "minimum", "maximum", "fma", "fmuladd"):
            three = operation in ("fma", "fmuladd")
            arguments = f"{kind} %x, {kind} %y" + (f", {kind} %x" if three else "")
            shapes = ", ".join([kind] * (3 if three else 2))
            found[f"{operation} {suffix}"] = kernel(
                f"  %r = call {kind} @llvm.{operation}.{suffix}({arguments})",
                f"declare {kind} @llvm.{operation}.{suffix}({shapes})",
                inputs=kind,
                result=kind,
            )
    for kind in ("i32", "i16", "i64", "<2 x i16>"):
        suffix = kind.replace("<2 x i16>", "v2i16")
        for operation in (
            "umin", "umax", "smin", "smax", "uadd.sat", "usub.sat", "sadd.sat", "ssub.sat",
            "fshl", "fshr", "ctpop", "bswap", "bitreverse", "ctlz", "cttz", "abs",
        ):  # fmt: skip
            if kind == "<2 x i16>" and operation in ("ctpop", "fshl", "fshr", "ctlz", "cttz"):
                continue
            arguments, shapes = [f"{kind} %x"], [kind]
            if operation in ("fshl", "fshr"):
                arguments, shapes = [f"{kind} %x", f"{kind} %y", f"{kind} %x"], [kind] * 3
            elif operation in ("ctlz", "cttz", "abs"):
                arguments, shapes = [*arguments, "i1 false"], [kind, "i1"]
            elif operation not in ("ctpop", "bswap", "bitreverse"):
                arguments, shapes = [f"{kind} %x", f"{kind} %y"], [kind] * 2
            found[f"{operation} {kind}"] = kernel(
                f"  %r = call {kind} @llvm.{operation}.{suffix}({', '.join(arguments)})",
                f"declare {kind} @llvm.{operation}.{suffix}({', '.join(shapes)})",
                inputs=kind,
                result=kind,
            )
    return found


def _conversions() -> dict[str, str]:
    found = {}
    floats = {"half": 16, "float": 32, "double": 64}
    integers = ("i8", "i16", "i32", "i64")
    for kind in floats:
        for other in integers:
            for operation, source, target in (
                ("fptosi", kind, other),
                ("fptoui", kind, other),
                ("sitofp", other, kind),
                ("uitofp", other, kind),
            ):
                found[f"{operation} {source} {target}"] = kernel(
                    f"  %r = {operation} {source} %x to {target}", inputs=source, result=target
                )
        for other in floats:
            if floats[kind] != floats[other]:
                operation = "fpext" if floats[kind] < floats[other] else "fptrunc"
                found[f"{operation} {kind} {other}"] = kernel(
                    f"  %r = {operation} {kind} %x to {other}", inputs=kind, result=other
                )
    for source, target in (("i8", "i32"), ("i16", "i32"), ("i32", "i64"), ("i16", "i64")):
        for operation in ("sext", "zext"):
            found[f"{operation} {source} {target}"] = kernel(
                f"  %r = {operation} {source} %x to {target}", inputs=source, result=target
            )
        found[f"trunc {target} {source}"] = kernel(
            f"  %r = trunc {target} %x to {source}", inputs=target, result=source
        )
    found["fpext bfloat"] = kernel("  %r = fpext bfloat %x to float", inputs="bfloat")
    found["fptrunc bfloat"] = kernel("  %r = fptrunc float %x to bfloat", result="bfloat")
    return found


@cache
def corpus() -> dict[str, str]:
    """Return all kernels by name, as IR."""
    return {
        **_binary(),
        **_compare(),
        **_intrinsics(),
        **_conversions(),
        **calls(kernel),
        **matrices(kernel),
        **atomics(kernel),
        **memory(kernel),
        **control(kernel),
    }
