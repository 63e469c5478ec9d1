"""A process with tinygrad's AM driver in it: run a scenario on the card behind `REMOTE`.

    python -m tests.foreign.tinygrad.tinygrad_client SCENARIO FIRMWARE RESULT

FIRMWARE is a folder of images, RESULT the JSON file to write: what each step gave, "ok" or the
trouble. The driver is as installed. Two functions around it are replaced: the one that downloads
firmware reads FIRMWARE, since the model takes images of its own signer only, and the compiler
behind the LLVM renderer is llvmlite's LLVM, because libLLVM is in no Python package.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from tinygrad import Device, Tensor
from tinygrad.device import Compiler
from tinygrad.runtime.support import compiler_llvm
from tinygrad.runtime.support.am import amdev

from tests.foreign.tinygrad.tinygrad_steps import Step, few, numbers, operators, trouble


class LlvmliteCompiler(Compiler):
    """tinygrad's IR to an AMD object, with the options of its own LLVM compiler."""

    def __init__(self, arch: str) -> None:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        target = llvm.Target.from_triple("amdgcn-amd-amdhsa")
        self._machine = target.create_target_machine(arch, "+cumode", opt=2, reloc="pic")
        super().__init__(None)

    def compile(self, src: str) -> bytes:
        """Optimise and emit. The module gets no triple: its `alloca` are not in addrspace(5)."""
        module = llvm.parse_assembly(src)
        module.verify()
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        builder = llvm.create_pass_builder(self._machine, options)
        builder.getModulePassManager().run(module, builder)
        return bytes(self._machine.emit_object(module))


def copies() -> Iterator[Step]:
    """To the card and back."""
    x = numbers(1 << 20)
    yield "copy", lambda: Tensor(x).to("AMD").realize().numpy(), x


def timed() -> Iterator[Step]:
    """Kernels whose time is taken: timestamps by RELEASE_MEM with an interrupt and no data."""
    from tinygrad.helpers import Context

    def run() -> np.ndarray:
        with Context(DEBUG=2):
            return np.asarray((Tensor(numbers(1024)) * 3).numpy())

    yield "timed kernel", run, numbers(1024) * 3


SCENARIOS = {"copies": copies, "operators": operators, "few": few, "timed": timed}


def main(scenario: str, firmware: str, result: str) -> None:
    """Run one scenario and write what came of it."""
    amdev.fetch_fw = lambda _folder, name, _digest: (Path(firmware) / name).read_bytes()
    compiler_llvm.AMDLLVMCompiler = LlvmliteCompiler
    begun = time.monotonic()
    device = Device["AMD"]
    report: dict[str, Any] = {
        "arch": device.arch,
        "partial boot": device.iface.dev_impl.partial_boot,
        "boot_s": round(time.monotonic() - begun, 2),
    }
    report["steps"] = {name: trouble(act, want) for name, act, want in SCENARIOS[scenario]()}
    report["seconds"] = round(time.monotonic() - begun, 2)
    Path(result).write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
