"""`make hw`: run the hardware suite on every real GPU of this machine, and write what was found.

python -m lab.hw                               every GPU that can be opened
python -m lab.hw --device virtual:gh100        one device; a model's report goes to build/hardware
python -m lab.hw --only life rates             only some sections
python -m lab.hw --only rates rows matmul candidates --minutes 9
                                               speed beside CUDA, and what might be faster

Ends within --minutes (5). Needs the Python packages alone, no network. Exit code: 0 nothing failed;
1 something did; 3 there is no GPU, which is not a success.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lab.hw import calls, machine, process
from lab.hw.report import Report, Result
from ugpu.hcq.find.listing import DeviceEntry
from ugpu.tools.inspect.devices import listed
from ugpu.tools.inspect.smi import NOT_GPUS

ROOT = Path(__file__).resolve().parents[2]
#: section -> seconds it may take when there is time for all; the last may take what is left
SECTIONS = {"contract": 60, "corpus": 90, "faults": 20, "rates": 30, "rows": 20, "matmul": 30,
            "life": 50, "candidates": 240}  # fmt: skip
USUAL = tuple(name for name in SECTIONS if name != "candidates")
OPENING_S = 40
PEER_S = 40
#: seconds a section gets to end by itself after its time
GRACE_S = 5
#: lines of a section's own standard error kept where it failed
MOST_ERRORS = 40
MOST_STACK = 80
NO_GPU = 3


@dataclass(frozen=True)
class Runner:
    """Runs sections in processes of their own. `now` tells the time.

    diagnostics: what the processes told of failures, by section.
    """

    device: str
    end: float
    now: Callable[[], float] = time.monotonic
    diagnostics: dict[str, list[str]] = field(default_factory=dict)

    @property
    def small(self) -> bool:
        """Whether sizes are a model's."""
        return not self.device.startswith(("nvrm:", "pci:", "kfd:"))

    def section(self, name: str, share_s: float) -> list[Result]:
        """Run one; a section that does not end, or dies, is a failed result beside those before."""
        seconds = min(share_s, self.end - self.now() - GRACE_S)
        if seconds <= 0:
            return [Result(name, name, "skipped", remark="no time was left")]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "results"
            file.touch()
            command = [sys.executable, "-m", "lab.hw.sections.run_section", name, self.device]
            command += [str(seconds), str(file), *(["--small"] if self.small else [])]
            done = _run(command, seconds + GRACE_S)
            found = [Result(**line) for line in calls.lines_of(file)]
            if done.trouble and not file.with_suffix(".done").exists():
                title = found[-1].section if found else name
                found.append(Result(title, name, "failed", remark=done.trouble))
            if any(result.outcome == "failed" for result in found):
                self.diagnostics[name] = _diagnosis(done, file.with_suffix(".calls"))
        return found

    def peer(self) -> dict[str, float]:
        """CUDA's numbers through PyTorch; empty where either is not there."""
        if not self.device.startswith("nvrm:") or self.end - self.now() < PEER_S:
            return {}
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "peer"
            _run([sys.executable, "-m", "lab.hw.peer_torch", str(file)], PEER_S)
            found: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}
            return found


def _run(command: Sequence[str], limit_s: float) -> process.Ended:
    return process.run(command, limit_s, folder=ROOT)


def _diagnosis(done: process.Ended, last_calls: Path) -> list[str]:
    """What a section that failed left: its errors, calls to the driver, the kernel's log."""
    found = done.errors.strip().splitlines()[-MOST_ERRORS:]
    stacks = calls.stacks_of(last_calls)
    if stacks.exists():
        found += ["", *stacks.read_text(encoding="utf-8").splitlines()[:MOST_STACK]]
    shown = calls.told(last_calls)
    if shown:
        found += ["", "calls to the driver before the first failure:", *shown]
    log = machine.kernel_log()
    found += ["", "kernel log:", *([log] if isinstance(log, str) else log[-12:])]
    return [line[:400] for line in found]


def usable(entries: Sequence[DeviceEntry]) -> list[str]:
    """The real GPUs that this user may open: not those in another driver's hands."""
    return [
        entry.name
        for entry in entries
        if not entry.name.startswith(NOT_GPUS)
        and entry.facts.get("usable", True)
        and (not entry.name.startswith("pci:") or entry.facts.get("driver") == "vfio-pci")
    ]


def beside(results: Sequence[Result], peer: Mapping[str, float]) -> list[Result]:
    """The results with the peer's numbers where there are any. What follows ": " in a name is a
    candidate for the work before it."""
    return [replace(each, peer=peer.get(each.name.partition(": ")[0])) for each in results]


def examine(device: str, sections: Sequence[str], end: float, folder: Path | None) -> Report:
    """Run the sections on one device; the report so far is written after each.

    folder: where to; None for the device's usual place.
    """
    begin = time.monotonic()
    runner = Runner(device, end)
    print(f"hw: {device}: opening", flush=True)
    opening = runner.section("opening", OPENING_S)
    known = next((json.loads(each.remark) for each in opening if each.name == "facts"), {})
    results = [each for each in opening if each.name != "facts"]

    def report(unfinished: Sequence[str] = ()) -> Report:
        made = Report(
            device, known, results, time.monotonic() - begin, runner.diagnostics, unfinished
        )
        made.write(place(made, folder))
        return made

    if any(each.outcome == "failed" for each in results):
        runner.diagnostics["machine"] = json.dumps(machine.facts(), indent=1).splitlines()
        return report()
    for number, name in enumerate(sections):
        report(sections[number:])
        print(f"hw: {device}: {name}", flush=True)
        share = SECTIONS[name]
        if number + 1 == len(sections):
            share = max(share, int(end - time.monotonic() - PEER_S))
        results += runner.section(name, share)
    results = beside(results, runner.peer())
    if any(each.outcome == "failed" for each in results):
        runner.diagnostics["machine"] = json.dumps(machine.facts(), indent=1).splitlines()
    return report()


def place(report: Report, folder: Path | None) -> Path:
    """Where a report goes: beside the documents only where it is of a real device."""
    real = not report.virtual and report.device != "cpu"
    return folder or ROOT / ("docs" if real else "build") / "hardware"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite; see the module."""
    parser = argparse.ArgumentParser(prog="python -m lab.hw", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--device", action="append", metavar="NAME", help="default: every GPU")
    parser.add_argument("--minutes", type=float, default=5, help="default: %(default)s")
    parser.add_argument("--output", type=Path, help="default: docs/hardware or build/hardware")
    parser.add_argument("--only", nargs="+", choices=tuple(SECTIONS), default=USUAL)
    given = parser.parse_args(arguments)
    devices = given.device or usable(listed())
    if not devices:
        print("hw: no GPU of this machine can be opened; `ugpu doctor` says what is missing")
        return NO_GPU
    begin, failed = time.monotonic(), False
    for number, device in enumerate(devices):
        left = given.minutes * 60 - (time.monotonic() - begin)
        end = time.monotonic() + left / (len(devices) - number)
        report = examine(device, given.only, end, given.output)
        data, page = report.write(place(report, given.output))
        print(report.markdown())
        print(f"hw: written to {data} and {page}")
        failed |= bool(report.failures)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
