"""LLVM IR text to an object file, or to PTX, by llvmlite.

Only IR that compiler.codegen.emit wrote may come here: LLVM's back ends end the process on IR they
cannot handle, so `emit` uses nothing but operations tested on each target.
"""

from __future__ import annotations

import threading
from functools import lru_cache

import llvmlite.binding as llvm

from hcq.target import TargetSpec

_lock = threading.Lock()  # llvmlite's global context is shared by all modules


def compile_text(text: str, target: TargetSpec) -> bytes:
    """Optimise and assemble a module; returns a relocatable ELF object, or PTX as UTF-8 text."""
    with _lock:
        machine = _machine(target.triple, target.cpu, target.features)
        module = llvm.parse_assembly(text)
        module.triple = target.triple
        module.data_layout = str(machine.target_data)
        module.verify()
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_vectorization = target.abi == "host"
        options.slp_vectorization = target.abi == "host"
        options.loop_interleaving = target.abi == "host"
        options.loop_unrolling = True
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
        if target.abi == "ptx":
            assembly: str = machine.emit_assembly(module)
            return assembly.encode()
        emitted: bytes = machine.emit_object(module)
        return emitted


@lru_cache(maxsize=16)
def _machine(triple: str, cpu: str, features: str) -> llvm.TargetMachine:
    """A target machine; position independent, so that an object runs wherever it is placed."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    found = llvm.Target.from_triple(triple)
    return found.create_target_machine(
        cpu=cpu, features=features, opt=3, reloc="pic", codemodel="small"
    )
