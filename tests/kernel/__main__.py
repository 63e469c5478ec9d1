"""`make test-kernel`: run the tiers of the laboratory, say what passed and what could not run.

A tier is a module tests/kernel/tier_<name>.py with `run(lab) -> list[Run]`; it raises
LabUnavailable where something it needs cannot be had, and is then reported as skipped, never as
passed. `python -m tests.kernel edu` runs the named tiers only; `--cache DIR` keeps the unpacked
programs elsewhere. Exit status: 0 when nothing failed (skipped tiers included), 1 otherwise, 2 for
an unknown tier. Writes build/test-kernel.json.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.kernel.lab import CACHE, ROOT, Lab, LabUnavailable, Run

HERE = Path(__file__).resolve().parent
CONSOLE_LINES = 12


def tiers() -> list[str]:
    return sorted(path.stem.removeprefix("tier_") for path in HERE.glob("tier_*.py"))


def show(run: Run) -> None:
    verdict = "passed" if run.passed else "FAILED"
    print(f"  boot {run.name}: {verdict} in {run.seconds:.1f} s {run.trouble}")
    for case in run.cases:
        print(f"    {case.outcome:<8} {case.name} ({case.seconds:.2f} s)")
        for name, value in case.figures.items():
            print(f"             {name}: {value}")
        if case.message:
            print("\n".join(f"             {line}" for line in case.message.splitlines()[-12:]))
    if not run.passed:
        print(f"  console log: {run.console}")
        if run.console.is_file():
            lines = run.console.read_text(errors="replace").splitlines()
            print("\n".join(f"    | {line}" for line in lines[-CONSOLE_LINES:]))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kernel")
    parser.add_argument("tiers", nargs="*", metavar="TIER", help=f"of: {', '.join(tiers())}")
    parser.add_argument("--cache", type=Path, default=CACHE, help="default: %(default)s")
    arguments = parser.parse_args(argv)
    unknown = sorted(set(arguments.tiers) - set(tiers()))
    if unknown:
        print(f"no tier {', '.join(unknown)}; there are: {', '.join(tiers())}")
        return 2
    started = time.monotonic()
    report: dict[str, object] = {}
    failed = False
    try:
        lab = Lab.prepare(arguments.cache)
    except LabUnavailable as reason:
        print(f"test-kernel: SKIPPED, nothing was tested: {reason}")
        _write({"skipped": str(reason)})
        return 0
    print(f"laboratory: Linux {lab.programs.kernel_release()}, ready in "
          f"{time.monotonic() - started:.1f} s")  # fmt: skip
    for name in arguments.tiers or tiers():
        try:
            runs = importlib.import_module(f"tests.kernel.tier_{name}").run(lab)
        except LabUnavailable as reason:
            print(f"tier {name}: SKIPPED, nothing was tested: {reason}")
            report[name] = {"skipped": str(reason)}
            continue
        passed = all(run.passed for run in runs)
        failed |= not passed
        print(f"tier {name}: {'passed' if passed else 'FAILED'}")
        for run in runs:
            show(run)
        report[name] = [{**asdict(run), "passed": run.passed} for run in runs]
    print(f"test-kernel: {'FAILED' if failed else 'done'} in {time.monotonic() - started:.1f} s")
    _write(report)
    return int(failed)


def _write(report: dict[str, object]) -> None:
    target = ROOT / "build" / "test-kernel.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(report, indent=1, default=str) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
