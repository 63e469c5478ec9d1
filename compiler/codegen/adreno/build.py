"""LLVM IR text to an object of Adreno machine code, in this process.

LLVM inlines functions marked `alwaysinline` and turns variables into values (SROA); Mesa does the
rest. Our own kernels need neither, as their attribute PLAIN states: LLVM reads and verifies them
in the tests only (NIR_DEBUG).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import llvmlite.binding as llvm

from ugpu.compiler.codegen.adreno.llvm.syntax import PLAIN
from ugpu.compiler.codegen.adreno.llvm.text import Function, read_module
from ugpu.compiler.codegen.adreno.mesa import Binary, compiler_for
from ugpu.compiler.codegen.adreno.select import shader_of
from ugpu.hcq.errors import CompileError
from ugpu.hcq.objects.ir3_object import Ir3Kernel, Ir3Parameter, pack_ir3
from ugpu.hcq.state.config import config
from ugpu.hcq.state.target import TargetSpec, adreno_chip, adreno_wide_atomics

# Pointers: 64 bits to global memory, 32 to local memory (3) and to variables (5).
_LAYOUT = "e-p:64:64-p3:32:32-p5:32:32-i64:64-n32-A5"
_WAVE = 64  # threads of a wave, in kernels that use its lanes
_ATTRIBUTES = re.compile(r'^attributes #(\d+) = .*"adreno-threads"="(\d+)"', re.MULTILINE)


def compile_adreno(
    text: str, target: TargetSpec, machine: Callable[[], llvm.TargetMachine]
) -> bytes:
    """Return the object (hcq.objects.ir3_object) of the kernels in a module. machine: returns any
    target machine, for LLVM's cost queries. CompileError if a module cannot be translated;
    RuntimeError if LLVM rejects it."""
    if PLAIN not in text:
        text = _inlined(text, machine())
    elif config().validate_nir:
        llvm.parse_assembly(text).verify()
    threads = {group: int(count) for group, count in _ATTRIBUTES.findall(text)}
    return pack_ir3(
        [_kernel(function, target, threads.get(function.attributes))
         for function in read_module(text)]
    )  # fmt: skip


def _inlined(text: str, machine: llvm.TargetMachine) -> str:
    """Return a verified module without functions to inline, and without avoidable variables."""
    module = llvm.parse_assembly(text)
    module.data_layout = _LAYOUT
    module.verify()
    manager = llvm.create_new_module_pass_manager()
    manager.add_always_inliner_pass()
    manager.add_sroa_pass()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())
    manager.run(module, builder)
    return str(module)


def _with_parameters(binary: Binary, at: int, threads: int) -> Binary:
    """Put the constant part of the driver's parameters before the immediates: a wave's size, which
    shuffles read. The rest stays 0, as none of our intrinsics reads it. Source: struct
    ir3_driver_params_cs (Mesa 25.2.7, src/freedreno/ir3/ir3_const.h)."""
    words = [0] * (4 * (binary.immediates_at - at))
    words[7:12] = [_WAVE, threads, 1, 1, _WAVE.bit_length() - 1]
    immediates = (*words, *binary.immediates)
    return replace(binary, immediates=immediates, immediates_at=at)


def _kernel(function: Function, target: TargetSpec, threads: int | None) -> Ir3Kernel:
    if threads is None:
        raise CompileError(
            'expected the attribute "adreno-threads" on the kernel', kernel=function.name
        )
    chip_id, generation = adreno_chip(target)
    compiler = compiler_for(chip_id)
    wide = adreno_wide_atomics(target)
    shader = shader_of(function, compiler.mesa.tables, threads, wide)
    binary = compiler.compile(shader.blob, -(-shader.constants // 4), shader.lanes)
    if binary.driver_params is not None:
        if not shader.lanes:
            raise CompileError("the kernel needs parameters of the driver", kernel=function.name)
        binary = _with_parameters(binary, binary.driver_params, threads)
    return Ir3Kernel(
        name=function.name,
        chip_id=chip_id,
        generation=generation,
        threads=threads,
        parameters=tuple(Ir3Parameter(*each) for each in shader.parameters),
        instructions=binary.instructions,
        full_registers=binary.full_registers,
        half_registers=binary.half_registers,
        merged_registers=binary.merged_registers,
        constants=binary.constants,
        immediates=binary.immediates,
        immediates_at=binary.immediates_at,
        local_size=binary.local_size,
        private_size=binary.private_size,
        private_per_wave=binary.private_per_wave,
        branch_stack=binary.branch_stack,
        double_wave=binary.double_wave,
        early_preamble=binary.early_preamble,
        barrier=binary.barrier,
        group_register=binary.group_register,
        thread_register=binary.thread_register,
        code=binary.code,
        textures=shader.textures,
        samplers=shader.samplers,
        images=shader.images,
    )
