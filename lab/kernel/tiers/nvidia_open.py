"""Tier "nvidia_open": NVIDIA's own open kernel module on the virtual AD102.

The module is Debian's source of release 550.163.01, built by lab.kernel.nvidia_module. It boots the
GSP with synthetic firmware under the name that it asks for, and its resource manager creates its
objects by the GSP's RPCs. Above it runs our driver for the stock module: copies, a kernel, faults,
a killed program, and operations of the corpus. With --long: the other chips too, and the corpus for
as long as --minutes allow, without what came out right in earlier long runs (corpus.txt, beside the
modules); --part i/n: each n-th operation of it, on AD102 alone.

The run's folder keeps what the module said (dmesg.txt), what it touched (accesses.txt) and what it
asked the GSP for (calls.txt). The tier passes when the module comes as far as `REACHED`, when our
driver's results are right, and when the card has nothing to object to.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from lab.kernel import nvidia_module
from lab.kernel.corpus_record import RECORD, CorpusRecord
from lab.kernel.lab import WHOLE, Case, Lab, Run, guest_tests, socket_path
from lab.kernel.machine import LabUnavailable
from lab.kernel.served import slot, write_files
from lab.kernel.tiers.nouveau import served
from tests.support.corpus.operation_corpus import corpus
from ugpu.virtual.nvidia.gsp.card import Card
from ugpu.virtual.nvidia.gsp.firmware.module import module_files
from ugpu.virtual.nvidia.text_files import NAMES

CHIPS = ("ad102", "ga102", "tu102")
REACHED = ("RmInitAdapter succeeded!",)
CORPUS_S, LONG_CORPUS_S, LIMIT_S = 60, 900, 300  # at the usual pace
# The module says much: a console would take most of the time, an ordinary buffer lose the start.
# It waits without yielding: on a slow host the kernel would report a lockup.
KERNEL_COMMAND = "loglevel=4 log_buf_len=32M nosoftlockup"
NEVER = ("WARNING:", "Oops", "BUG:", "Assertion failed")


def run(lab: Lab) -> list[Run]:
    """Boot AD102; with --long the other chips first. Skipped until the modules were built."""
    module = nvidia_module.path(lab.folder, lab.programs.kernel_release())
    if not module.is_file():
        raise LabUnavailable("not built; `python -m lab.kernel.nvidia_module` does it")
    provided = lab.folder / "nvidia"
    chips = CHIPS if lab.long and lab.part == WHOLE else CHIPS[:1]
    runs = []
    for chip in reversed(chips):
        write_files(provided / "firmware", module_files(chip))
        with socket_path("nvidia") as socket:
            runs.append(_boot(lab, socket, module, chip))
    return runs


def _corpus(lab: Lab, chip: str) -> dict[str, float]:
    """What the guest is to do of the corpus: its seconds at the usual pace, and which part."""
    long = lab.long and chip == CHIPS[0]
    limit_s = float(CORPUS_S)
    if long:
        left_s = (lab.end - time.monotonic()) / lab.pace - LIMIT_S if lab.end else LONG_CORPUS_S
        limit_s = min(LONG_CORPUS_S, max(CORPUS_S, left_s))
    return {"limit_s": limit_s, "resumed": long, "part": lab.part[0], "parts": lab.part[1]}


def _boot(lab: Lab, socket: Path, module: Path, chip: str) -> Run:
    others = list(lab.modules.needed_by(module.read_bytes()))
    record = CorpusRecord(lab.folder / "nvidia-open" / RECORD)
    asked = _corpus(lab, chip)
    if asked["resumed"]:
        record.begin(list(corpus()))
    with served(socket, chip) as (model, trace):
        done = lab.boot(
            f"nvidia-open-{chip}",
            tests=guest_tests("nvidia_open"),
            devices=slot(socket),
            modules=others,
            kernel_command=KERNEL_COMMAND,
            handlers={
                "card": lambda: NAMES[chip],
                "corpus": lambda: asked,
                "right": record.add if asked["resumed"] else lambda name: None,
            },
            limit_s=LIMIT_S + asked["limit_s"],
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
