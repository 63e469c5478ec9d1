"""A process with tinygrad's KGSL driver in it: run a scenario on a virtual Adreno GPU.

    python -m tests.foreign.tinygrad.tinygrad_qcom_client CHIP RESULT

CHIP is a virtual chip ("a630"), RESULT the JSON file to write: what each step gave, "ok" or the
trouble, and what the model called wrong. Driver, renderer and compiler (Mesa's ir3) are as
installed; device files and mappings are forwarded to the virtual node (kgsl_files.py).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from tinygrad import Device
from tinygrad.runtime import ops_qcom

from tests.foreign.kgsl_files import install
from tests.foreign.tinygrad.tinygrad_steps import operators, trouble
from ugpu.virtual.adreno.gpu import build_machine
from ugpu.virtual.adreno.node import VirtualNode

DOUBLES = "doubles"  # the renderer for ir3 has no float64


def main(chip: str, result: str) -> None:
    """Run the scenario and write what came of it."""
    begun = time.monotonic()
    machine = build_machine(chip)
    install(VirtualNode(machine), ops_qcom)
    report: dict[str, Any] = {"steps": {}}
    try:
        device = Device["QCOM"]
        report["arch"], report["renderer"] = device.arch, type(device.renderer).__name__
        steps = [step for step in operators(matrix_units=False) if step[0] != DOUBLES]
        report["steps"] = {name: trouble(act, want) for name, act, want in steps}
    except Exception as error:  # it did not come up: the model's log may say why
        report["steps"] = {"bring-up": f"{type(error).__name__}: {error}"}
    report["violations"] = machine.violations
    report["log"] = [str(entry) for entry in machine.log]
    report["gaps"] = [str(gap) for gap in machine.gaps]
    report["refused"] = machine.refused
    report["seconds"] = round(time.monotonic() - begun, 2)
    Path(result).write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
