"""A process with tinygrad's NV driver in PCI mode: run a scenario on the card behind `REMOTE`.

    python -m tests.foreign.tinygrad.tinygrad_gsp_client SCENARIO FIRMWARE RESULT

FIRMWARE is a folder of images, RESULT the JSON file to write: what each step gave, "ok" or the
trouble. Driver, renderer and compiler (PTX, nvJitLink) are as installed. Two things around them are
replaced: the function that downloads firmware reads FIRMWARE, since the model takes images of its
own signer only, and what the compiler returns gets the note by which the virtual SMs find the PTX.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tinygrad import Device, Tensor
from tinygrad.runtime.support import compiler_cuda
from tinygrad.runtime.support.nv import ip

from tests.foreign.compilers.noted_cubin import noted
from tests.foreign.tinygrad.tinygrad_steps import Step, few, numbers, operators, trouble


def copies() -> Iterator[Step]:
    """To the card and back."""
    x = numbers(1 << 20)
    yield "copy", lambda: Tensor(x).to("NV").realize().numpy(), x


SCENARIOS = {"copies": copies, "operators": operators, "few": few}


def main(scenario: str, firmware: str, result: str) -> None:
    """Run one scenario and write what came of it."""
    ip.fetch_fw = lambda folder, name, _digest: (Path(firmware) / folder / name).read_bytes()
    compiler: Any = compiler_cuda.NVPTXCompiler
    compiled, rendered = compiler.compile, compiler_cuda.PTXCompiler.compile
    compiler.compile = lambda self, source: noted(compiled(self, source), rendered(self, source))
    begun = time.monotonic()
    device = Device["NV"]
    report: dict[str, Any] = {
        "arch": device.arch,
        "interface": type(device.iface).__name__,
        "boot_s": round(time.monotonic() - begun, 2),
    }
    report["steps"] = {name: trouble(act, want) for name, act, want in SCENARIOS[scenario]()}
    report["seconds"] = round(time.monotonic() - begun, 2)
    Path(result).write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
