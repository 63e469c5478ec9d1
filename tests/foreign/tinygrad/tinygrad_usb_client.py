"""A process with tinygrad's USB back end in it: run a scenario on a virtual card in an enclosure.

    python -m tests.foreign.tinygrad.tinygrad_usb_client CHIP RESULT

CHIP is a virtual chip ("navi31"), RESULT the JSON file to write: what each step gave, "ok" or the
trouble, what the models of the card and of the bridge called wrong, and the card's notes. The
driver is as installed. Replaced around it are libusb (usb_stand.py) and the two functions that
tinygrad_client.py replaces.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from tinygrad import Device
from tinygrad.runtime import ops_amd
from tinygrad.runtime.support import compiler_llvm, system
from tinygrad.runtime.support.am import amdev

from tests.foreign.tinygrad.tinygrad_client import LlvmliteCompiler
from tests.foreign.tinygrad.tinygrad_steps import operators, trouble
from tests.foreign.usb_stand import install
from ugpu.am.chips import facts_of
from ugpu.virtual.amd.bus.endpoint import ChipEndpoint
from ugpu.virtual.amd.firmware.images import synthetic_set
from ugpu.virtual.amd.gpu import build_chip
from ugpu.virtual.amd.options import ChipOptions, Delays
from ugpu.virtual.usb.enclosure import Enclosure


def main(name: str, result: str) -> None:
    """Run the scenario and write what came of it."""
    begun = time.monotonic()
    facts = facts_of(name)
    images = synthetic_set(facts)
    delays = Delays(smu_message=0, autoload=0)
    chip = build_chip(facts, ChipOptions(vram=1 << 30, platform=False, delays=delays))
    enclosure = Enclosure(ChipEndpoint(chip))
    install(enclosure, ops_amd, system)
    amdev.fetch_fw = lambda _folder, wanted, _digest: images[wanted]
    compiler_llvm.AMDLLVMCompiler = LlvmliteCompiler
    report: dict[str, Any] = {}
    try:
        device = Device["AMD"]
        report["arch"] = device.arch
        report["boot_s"] = round(time.monotonic() - begun, 2)
        report["steps"] = {step: trouble(act, want) for step, act, want in operators()}
    except Exception as error:  # it did not come up: what the models say may tell why
        where = "".join(traceback.format_exception(error)[-4:])
        report["steps"] = {"bring-up": where}
    report["violations"], report["notes"] = list(chip.violations), list(chip.notes)
    report["objections"] = enclosure.objections
    report["seconds"] = round(time.monotonic() - begun, 2)
    Path(result).write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
