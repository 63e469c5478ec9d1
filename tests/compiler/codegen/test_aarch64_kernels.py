"""What the compiler emits for an AArch64 host can be linked there: every relocation is known, and
only functions of the mathematics library are wanted from outside."""

from __future__ import annotations

import dataclasses

import llvmlite.binding as llvm
import pytest

from tests.support.compiler.compiler_cases import HOST, buffer, kernels_of
from ugpu.compiler import Tensor
from ugpu.compiler.codegen.emit import emit
from ugpu.compiler.codegen.process.objects import compile_text
from ugpu.compiler.dtype import bfloat16, float16, float32, int8, int64
from ugpu.compiler.graph.node import Node
from ugpu.hcq.cpu import processor
from ugpu.hcq.cpu.aarch64 import EM_AARCH64, RELOCATIONS_AARCH64, jump
from ugpu.hcq.device.device import Device
from ugpu.hcq.objects.elf import read_object
from ugpu.hcq.objects.linking import lay_out, link

PHONE = dataclasses.replace(
    HOST, triple="aarch64-unknown-linux-gnu", cpu="cortex-a55", features="+neon", vector_bytes=16
)
LIBRARY = {"expf", "exp2f", "logf", "log2f", "sinf", "cosf", "tanhf", "powf", "fmodf", "erff",
           "memcpy", "memset", "exp", "log", "sin", "cos", "tanh", "pow", "fmod"}  # fmt: skip


def _tensor(device: Device, node: Node) -> Tensor:
    made = Tensor(0, device=device)
    made.node = node
    return made


@pytest.mark.parametrize("name", ["product", "softmax", "sum", "functions", "types", "window"])
def test_kernels_link(cpu: Device, name: str) -> None:
    x = _tensor(cpu, buffer(130, 70, dtype=float32))
    half = _tensor(cpu, buffer(130, 70, dtype=float16))
    image = _tensor(cpu, buffer(2, 8, 20, 20, dtype=float32))
    works = {
        "product": lambda: [x @ x.transpose(0, 1), half @ half.transpose(0, 1)],
        "softmax": lambda: [x.softmax(), (x @ x.transpose(0, 1)).softmax() @ x],
        "sum": lambda: [x.sum(), x.sum(0), half.max(1), x.argmax(0)],
        "functions": lambda: [x.exp(), x.log(), x.sin(), x.tanh(), x.sqrt(), x.sigmoid()],
        "types": lambda: [x.cast(bfloat16), x.cast(int8), half.cast(int64), half * 2 + 1],
        "window": lambda: [image.conv2d(image[:1, :, :3, :3].contiguous(), padding=1)],
    }
    for result in works[name]():
        for kernel in kernels_of(result.node, PHONE):
            elf = read_object(compile_text(emit(kernel, PHONE), PHONE))
            assert elf.machine == EM_AARCH64
            wanted = {s.name for s in elf.symbols if s.name and not s.is_defined}
            assert wanted <= LIBRARY
            layout = lay_out(elf, RELOCATIONS_AARCH64, 16)
            outside = dict.fromkeys(wanted, 0x7FFF_1234_5678)
            assert len(link(layout, 0x5555_0000_0000, outside, jump)) == layout.size


def test_the_command_processor_compiles() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(processor.source(PHONE.triple), llvm.create_context())
    module.verify()
    machine = llvm.Target.from_triple(PHONE.triple).create_target_machine(cpu=PHONE.cpu, opt=2)
    elf = read_object(machine.emit_object(module))
    assert elf.machine == EM_AARCH64
    for name in ("ring", "await", "push", "submit", "expect", "serve", "halt", "work"):
        assert elf.find(f"ugpu_{name}") is not None
