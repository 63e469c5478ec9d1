"""`make hw`: run the hardware suite on every real GPU of this machine, and write what was found.

python -m tests.hw                               every GPU that can be opened
python -m tests.hw --device virtual:gh100        one device; a model's report goes to build/hardware
python -m tests.hw --only life rates             only some sections

Ends within --minutes (5). Needs the Python packages alone, no network. Exit code: 0 nothing failed;
1 something did; 3 there is no GPU, which is not a success.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import hcq
from hcq.errors import UgpuError
from hcq.registry import DeviceEntry
from tests.hw.report import Report, Result
from tools import nvidia
from tools.devices import listed
from tools.smi import NOT_GPUS

ROOT = Path(__file__).resolve().parents[2]
#: section -> seconds it may take when there is time for all
SECTIONS = {"contract": 60, "corpus": 90, "faults": 20, "life": 50, "rates": 30, "matmul": 30}
PEER_S = 40
#: seconds a section gets to end by itself after its time
GRACE_S = 5
NO_GPU = 3


@dataclass(frozen=True)
class Runner:
    """Runs sections in processes of their own. `now` tells the time."""

    device: str
    end: float
    now: Callable[[], float] = time.monotonic

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
            command = [sys.executable, "-m", "tests.hw.run_section", name, self.device]
            command += [str(seconds), str(file), *(["--small"] if self.small else [])]
            trouble = _run(command, seconds + GRACE_S)
            found = [Result(**json.loads(line)) for line in file.read_text().splitlines()]
        if trouble:
            title = found[-1].section if found else name
            found.append(Result(title, name, "failed", remark=trouble))
        return found

    def peer(self) -> dict[str, float]:
        """CUDA's numbers through PyTorch; empty where either is not there."""
        if not self.device.startswith("nvrm:") or self.end - self.now() < PEER_S:
            return {}
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "peer"
            _run([sys.executable, "-m", "tests.hw.peer_torch", str(file)], PEER_S)
            found: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}
            return found


def _run(command: Sequence[str], limit_s: float) -> str:
    """Run a process; return what went wrong, or an empty text."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, timeout=limit_s, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired:
        return f"was ended by force after {limit_s:.0f} s"
    if done.returncode == 0:
        return ""
    said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
    return f"ended with {done.returncode}: {said}"[:300]


def usable(entries: Sequence[DeviceEntry]) -> list[str]:
    """The real GPUs that this user may open: not those in another driver's hands."""
    return [
        entry.name
        for entry in entries
        if not entry.name.startswith(NOT_GPUS)
        and entry.facts.get("usable", True)
        and (not entry.name.startswith("pci:") or entry.facts.get("driver") == "vfio-pci")
    ]


def facts(device: str) -> dict[str, object]:
    """What the device and the machine say of themselves."""
    found: dict[str, object] = {}
    for entry in nvidia.entries():
        if entry.name == device:
            driver = str(entry.facts["driver"]).removeprefix("nvidia ")
            found |= {"gpu": entry.description, "driver": driver, "module": entry.facts["module"]}
    with hcq.open(device) as opened:
        info = opened.info()
        found |= {"target": opened.target.name}
        found |= {key: info[key] for key in ("gpu", "chip", "driver", "memory") if key in info}
    python = platform.python_version()
    return {**found, "machine": platform.machine(), "python": python, "kernel": platform.release()}


def beside(results: Sequence[Result], peer: Mapping[str, float]) -> list[Result]:
    """The results with the peer's numbers where there are any."""
    return [replace(each, peer=peer.get(each.name)) for each in results]


def examine(device: str, sections: Sequence[str], end: float) -> Report:
    """Run the sections on one device."""
    begin = time.monotonic()
    runner = Runner(device, end)
    try:
        known = facts(device)
    except UgpuError as error:
        remark = f"{type(error).__name__}: {error}"[:300]
        failed = Result("Opening", device, "failed", remark=remark)
        return Report(device, {}, [failed], time.monotonic() - begin)
    results: list[Result] = []
    for name in sections:
        print(f"hw: {device}: {name}", flush=True)
        results += runner.section(name, SECTIONS[name])
    results = beside(results, runner.peer())
    return Report(device, known, results, time.monotonic() - begin)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite; see the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.hw", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--device", action="append", metavar="NAME", help="default: every GPU")
    parser.add_argument("--minutes", type=float, default=5, help="default: %(default)s")
    parser.add_argument("--output", type=Path, help="default: docs/hardware or build/hardware")
    parser.add_argument("--only", nargs="+", choices=tuple(SECTIONS), default=tuple(SECTIONS))
    given = parser.parse_args(arguments)
    devices = given.device or usable(listed())
    if not devices:
        print("hw: no GPU of this machine can be opened; `ugpu doctor` says what is missing")
        return NO_GPU
    begin, failed = time.monotonic(), False
    for place, device in enumerate(devices):
        left = given.minutes * 60 - (time.monotonic() - begin)
        report = examine(device, given.only, time.monotonic() + left / (len(devices) - place))
        real = not report.virtual and device != "cpu"
        default = ROOT / ("docs" if real else "build") / "hardware"
        data, page = report.write(given.output or default)
        print(report.markdown())
        print(f"hw: written to {data} and {page}")
        failed |= bool(report.failures)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
