"""Tier "nvidia_open": NVIDIA's own open kernel module on the virtual AD102.

The module is Debian's source of release 550.163.01, built by lab.kernel.nvidia_module. It boots the
GSP with synthetic firmware under the name that it asks for, and its resource manager creates its
objects by the GSP's RPCs. Above it runs our driver for the stock module: copies, a kernel, and the
operation corpus, a part of it in a minute or with --long all.

The run's folder keeps what the module said (dmesg.txt), what it touched (accesses.txt) and what it
asked the GSP for (calls.txt). The tier passes when the module comes as far as `REACHED`, when our
driver's results are right, and when the card has nothing to object to.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from lab.kernel import nvidia_module
from lab.kernel.lab import Case, Lab, Run, socket_path
from lab.kernel.machine import LabUnavailable
from lab.kernel.tier_nouveau import served
from ugpu.virtual.nvidia.gsp.card import Card
from ugpu.virtual.nvidia.gsp.firmware.module import module_files

CHIP = "ad102"
OPTIONS = "NVreg_ResmanDebugLevel=0 NVreg_RegistryDwords=RmRcWatchdog=0"
REACHED = ("RmInitAdapter succeeded!",)
CORPUS_S, LONG_CORPUS_S, LIMIT_S = 60, 900, 300
# The module says much: a console would take most of the time, an ordinary buffer lose the start.
# It waits without yielding, which is no lockup on a slow host.
KERNEL_COMMAND = "loglevel=4 log_buf_len=32M nosoftlockup"
NEVER = ("WARNING:", "Oops", "BUG:", "Assertion failed")


def run(lab: Lab) -> list[Run]:
    """A boot of AD102; skipped until the modules were built."""
    module = nvidia_module.path(lab.folder, lab.programs.kernel_release())
    if not module.is_file():
        raise LabUnavailable("not built; `python -m lab.kernel.nvidia_module` does it")
    provided = lab.folder / "nvidia"
    for name, image in module_files(CHIP).items():
        place = provided / "firmware" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(image)
    with socket_path("nvidia") as socket:
        return [_boot(lab, socket, provided, module)]


def _boot(lab: Lab, socket: Path, provided: Path, module: Path) -> Run:
    card = {
        "driver": "vfio-user-pci", "id": "gpu0", "bus": "port0", "addr": "0.0", "rombar": 0,
        "socket": {"type": "unix", "path": str(socket)},
    }  # fmt: skip
    others = list(lab.modules.needed_by(module.read_bytes()))
    with served(socket, CHIP) as (model, trace):
        done = lab.boot(
            "nvidia-open",
            tests=["lab/kernel/guest/nvidia_open.py"],
            devices=[
                *("-device", "pcie-root-port,id=port0,chassis=1,slot=1,x-speed=5"),
                *("-device", json.dumps(card)),
            ],
            modules=others,
            kernel_command=KERNEL_COMMAND,
            handlers={"corpus_s": lambda: LONG_CORPUS_S if lab.long else CORPUS_S},
            limit_s=LIMIT_S + (LONG_CORPUS_S if lab.long else 0),
        )
        facts = _facts(model, trace.lines)
    if done.lack:
        return done
    for name, lines in facts.items():
        (done.console.parent / f"{name}.txt").write_text("\n".join(lines) + "\n")
    said_file = done.console.parent / "exchange/dmesg.txt"
    said = said_file.read_text(errors="replace") if said_file.is_file() else ""
    results = {f"the module says: {word}": word in said for word in REACHED}
    results["it warns of nothing"] = not any(word in said for word in NEVER)
    results["the card has nothing to object to"] = not facts["violations"]
    cases = [Case(name, "passed" if well else "failed", 0.0) for name, well in results.items()]
    return replace(done, cases=[*done.cases, *cases])


def _facts(model: Card, accesses: list[str]) -> dict[str, list[str]]:
    counted = (*model.notes.items(), *model.registers.unknown.items())
    return {
        "accesses": list(accesses),
        "calls": list(model.calls),
        "violations": list(model.violations),
        "notes": [f"{text} x{count}" for text, count in counted],
        "refused": list(model.machine.refused),
    }
