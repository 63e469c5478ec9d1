"""A process with tinygrad's NV driver in it: run a scenario on a virtual NVIDIA GPU.

    python -m tests.foreign.tinygrad.tinygrad_nv_client CHIP DRIVER RESULT

CHIP is a virtual chip ("ga102"), DRIVER a version of the kernel driver, RESULT the JSON file to
write: what each step gave, "ok" or the trouble, what the model called wrong, what ended a thread of
it, and where all threads were when a step took long. Driver, renderer
and compiler (PTX, nvJitLink) are as installed. Three things around them are replaced: device files
and mappings (node_files.py), and what the compiler returns gets the note by which the virtual SMs
find the PTX (noted_cubin.py).
"""

from __future__ import annotations

import faulthandler
import json
import sys
import time
from pathlib import Path
from typing import Any

from tinygrad import Device
from tinygrad.runtime import ops_nv
from tinygrad.runtime.support import compiler_cuda

from tests.foreign.compilers.noted_cubin import noted
from tests.foreign.node_files import install, share_memory
from tests.foreign.tinygrad.tinygrad_steps import operators, trouble
from ugpu.virtual.nvidia.gpu import build_machine
from ugpu.virtual.nvidia.node import VirtualNode
from ugpu.virtual.nvidia.options import MachineOptions

MEMORY = 2 << 30
SLOW_S = 20  # a step that is not over by then has the stacks of all threads in the report


def main(chip: str, driver: str, result: str) -> None:
    """Run the scenario and write what came of it."""
    begun = time.monotonic()
    share_memory()
    machine = build_machine(chip, MachineOptions(driver=driver, memory=MEMORY, coherence=True))
    node = VirtualNode(machine)
    install(node, ops_nv)
    compiler: Any = compiler_cuda.NVPTXCompiler
    compiled, rendered = compiler.compile, compiler_cuda.PTXCompiler.compile
    kernels: list[str] = []

    def compile_noted(self: Any, source: str) -> bytes:
        kernels.append(source)
        return noted(compiled(self, source), rendered(self, source))

    compiler.compile = compile_noted
    report: dict[str, Any] = {}
    try:
        device = Device["NV"]
        report["arch"], report["renderer"] = device.arch, type(device.renderer).__name__
        report["steps"] = {}
        with open(f"{result}.stacks", "w+", encoding="utf-8") as stacks:
            for name, act, want in operators():
                faulthandler.dump_traceback_later(SLOW_S, file=stacks)
                report["steps"][name] = trouble(act, want)
            faulthandler.cancel_dump_traceback_later()
            stacks.seek(0)
            report["slow"] = stacks.read()
    except Exception as error:  # it did not come up: the model's log may say why
        report["steps"] = {"bring-up": f"{type(error).__name__}: {error}"}
    report["violations"] = machine.violations
    report["log"] = [str(entry) for entry in machine.log]
    report["dead"] = [
        f"{runlist.name}: {runlist.error!r}"
        for gpu in machine.gpus
        for runlist in gpu.runlists
        if runlist.error is not None
    ]
    report["kernels"] = len(kernels)
    report["gaps"] = [str(gap) for gap in node.gaps]
    report["seconds"] = round(time.monotonic() - begun, 2)
    Path(result).write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
