"""LLVM IR text to an object file, or to PTX, by llvmlite; for Adreno, with Mesa.

LLVM's back ends end the process on IR they cannot handle, so compilation runs in a child process:
`compile_text` accepts any IR, `compile_here` is for that process (compiler.codegen.process.worker).
"""

from __future__ import annotations

import re
from functools import lru_cache, partial
from pathlib import Path

import llvmlite.binding as llvm

from ugpu.compiler.codegen.adreno.build import compile_adreno
from ugpu.compiler.codegen.process.children import shared, version
from ugpu.hcq.disk.objects import kept
from ugpu.hcq.objects.jit import LLVM_LOCK
from ugpu.hcq.state.target import TargetSpec

_DEFINED = re.compile(r'^define\b[^@]*@"?([\w.$-]+)', re.MULTILINE)
# LLVM 22's vectoriser of straight code takes the sign of one element for that of their maximum,
# where maxima of floats are found among integers (compiler.expression.accumulate, `of_key`)
_EXTREME = re.compile(r"@llvm\.s(max|min)\.i32\(")
_NEWER = "mma.sync.aligned.m16n8k32.row.col.f32.e"  # in a module: its PTX needs _VERSION
_VERSION = "+ptx84"  # LLVM's feature; PTX ISA, "mma", "PTX ISA Notes"
FIRST = 1  # of LLVM's levels of code generation, for first versions of kernels and quick targets


def compile_text(text: str, target: TargetSpec) -> bytes:
    """Optimise and assemble a module of LLVM IR in a child process; return a relocatable ELF
    object, which `Device.load` takes, or PTX as UTF-8 text. CompileError gives LLVM's message, and
    the line if LLVM gives one."""
    return shared().submit(text, target, _name(text)).result().image


def _name(text: str) -> str:
    """Return the first function that is defined."""
    found = _DEFINED.search(text)
    return found[1] if found else "module"


def compile_here(text: str, target: TargetSpec, *, first: bool = False) -> bytes:
    """Compile in this process, which LLVM may end. RuntimeError if its parser, verifier or target
    lookup reject the module. first: compile in a quarter of the time or less; the code takes up to
    twice as long, for loops that LLVM would vectorise longer (docs/compiler-design.md)."""
    if target.abi == "ir3":
        return _compile(text, target, first)
    machine = (
        target.abi, target.triple, target.cpu, target.features,
        *["first"] * first, *["quick"] * target.quick,
    )  # fmt: skip
    return kept(partial(_compile, text, target, first), Path(__file__), version(), *machine, text)


def _compile(text: str, target: TargetSpec, first: bool) -> bytes:
    if target.abi == "ir3":
        with LLVM_LOCK:
            return compile_adreno(text, target, _host_machine)
    with LLVM_LOCK:
        features = target.features
        if target.abi == "ptx" and _NEWER in text:
            features = f"{features},{_VERSION}" if features else _VERSION
        level = FIRST if first or target.quick else 3
        machine = _machine(target.triple, target.cpu, features, level)
        module = llvm.parse_assembly(text)
        module.triple = target.triple
        module.data_layout = str(machine.target_data)
        module.verify()
        straight = target.abi == "host" and not _EXTREME.search(text)
        _optimise(module, machine, target, first, straight)
        _reduce(not target.quick)
        try:
            if target.abi == "ptx":
                assembly: str = machine.emit_assembly(module)
                return assembly.encode()
            emitted: bytes = machine.emit_object(module)
            return emitted
        finally:
            _reduce(True)


def _reduce(whether: bool) -> None:
    """Have LLVM search for fewer counters of loops when it generates code, or not: a tenth to a
    seventh of its time for a GPU. An option of the process; see `hcq.objects.jit`."""
    llvm.set_option("", f"-disable-lsr={str(not whether).lower()}")


def _optimise(
    module: llvm.ModuleRef, machine: llvm.TargetMachine, target: TargetSpec, first: bool,
    straight: bool,
) -> None:  # fmt: skip
    """Run LLVM's passes; for a first version only the one that moves variables to registers, for a
    quick target also those that simplify instructions and loops. A loop that is not rotated copies
    the registers that it changes. straight: whether straight code is vectorised."""
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = target.abi == "host"
    options.slp_vectorization = straight
    options.loop_interleaving = target.abi == "host"
    options.loop_unrolling = True
    builder = llvm.create_pass_builder(machine, options)
    if first or target.quick:
        passes = llvm.create_new_module_pass_manager()
        passes.add_sroa_pass()
        if not first:
            passes.add_simplify_cfg_pass()
            passes.add_loop_rotate_pass()
            passes.add_instruction_combine_pass()
            passes.add_simplify_cfg_pass()
    else:
        passes = builder.getModulePassManager()
    passes.run(module, builder)


@lru_cache(maxsize=16)
def _machine(triple: str, cpu: str, features: str, level: int) -> llvm.TargetMachine:
    """Return a target machine; position independent, so that an object runs at any address."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    found = llvm.Target.from_triple(triple)
    return found.create_target_machine(
        cpu=cpu, features=features, opt=level, reloc="pic", codemodel="small"
    )


@lru_cache(maxsize=1)
def _host_machine() -> llvm.TargetMachine:
    """Return a target machine for passes that do not use one."""
    llvm.initialize_native_target()
    return llvm.Target.from_default_triple().create_target_machine()
