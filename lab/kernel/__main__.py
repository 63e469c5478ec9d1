"""`make test-kernel`: run the tiers of the laboratory, say what passed and what could not run.

A tier is a module lab/kernel/tiers/<name>.py with `run(lab) -> list[Run]`; it raises
LabUnavailable where something it needs cannot be had, and is then reported as skipped, never as
passed. Two tiers run side by side, each in a process of its own, where the machine has two
processors and the memory. `python -m lab.kernel edu` runs the named tiers only; `--cache DIR`
keeps the unpacked programs elsewhere; `--turn` runs tier amdgpu and the one whose turn it is by the
commit's number, as continuous integration does; `--minutes N` bounds all of it: what could not end
by then is not begun. `--long`: tier usb pulls the cable 200 times, tier usb_stock boots the card,
tier nvidia_open goes on with the operation corpus where the last run ended, tier nouveau boots all
chips, which takes minutes (`--part i/n`: a part of these two), tier amdgpu_gfx12 boots the newer
kernel too. Exit status: 0 when nothing
failed (skipped tiers included), 1 otherwise, 2 for an unknown tier. Ends with a table, a line for
each boot. Writes build/test-kernel.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.kernel.corpus_record import part_of
from lab.kernel.lab import CACHE, ROOT, WHOLE, Lab, LabBroken, Run
from lab.kernel.machine import LabUnavailable
from lab.kernel.turn import in_turn, run_tiers, tiers
from tests.changed import Checkout

MESSAGE_LINES, CONSOLE_LINES, END_LINES = 40, 40, 12
MINUTES = 20


@dataclass(frozen=True)
class Row:
    """A line of the table at the end. `result`: passed, skipped or FAILED."""

    what: str
    result: str
    remark: str


def show(run: Run) -> None:
    print(f"  boot {run.name}: {run.verdict} in {run.seconds:.1f} s {run.trouble}{run.lack}")
    for case in run.cases:
        print(f"    {case.outcome:<8} {case.name} ({case.seconds:.2f} s)")
        for name, value in case.figures.items():
            print(f"             {name}: {value}")
        if case.message:
            lines = case.message.splitlines()[-MESSAGE_LINES:]
            print("\n".join(f"             {line}" for line in lines))
    if run.verdict == "FAILED":
        for log in (run.console, run.console.with_name("qemu.log")):
            if log.is_file():
                print(f"  {log}:")
                lines = log.read_text(errors="replace").splitlines()[-CONSOLE_LINES:]
                print("\n".join(f"    | {line}" for line in lines))


def row(run: Run) -> Row:
    passed = sum(case.outcome == "passed" for case in run.cases)
    names = [case.name for case in run.cases if case.outcome == "failed"]
    skipped = sum(case.outcome == "skipped" for case in run.cases)
    remark = run.lack
    if not remark:
        remark = f"{passed} checks in {run.seconds:.0f} s"
        remark += f", {skipped} skipped" if skipped else ""
        remark += "".join(f"; {words}" for words in (run.trouble, *names) if words)
    return Row(run.name, run.verdict, remark)


def failed(run: Run) -> list[str]:
    """The end of each failing check's message."""
    return [
        "\n".join([f"{case.name}:", *case.message.splitlines()[-END_LINES:]])
        for case in run.cases
        if case.outcome == "failed"
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.kernel")
    parser.add_argument("tiers", nargs="*", metavar="TIER", help=f"of: {', '.join(tiers())}")
    parser.add_argument("--cache", type=Path, default=CACHE, help="default: %(default)s")
    parser.add_argument("--turn", action="store_true", help="this commit's tiers only")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="default: %(default)s")
    parser.add_argument("--long", action="store_true", help="what takes minutes too: see above")
    parser.add_argument("--part", type=part_of, default=WHOLE, metavar="I/N", help="see above")
    arguments = parser.parse_args(argv)
    unknown = sorted(set(arguments.tiers) - set(tiers()))
    if unknown:
        print(f"no tier {', '.join(unknown)}; there are: {', '.join(tiers())}")
        return 2
    started = time.monotonic()
    report: dict[str, object] = {}
    rows: list[Row] = []
    failures: list[str] = []
    wanted: Sequence[str] = arguments.tiers or tiers()
    if arguments.turn:
        wanted = in_turn(wanted, Checkout().number())
        rest = [name for name in tiers() if name not in wanted]
        print(f"not run: tiers {', '.join(rest)} (`make test-kernel` runs all)", flush=True)
    try:
        with Lab.prepare(arguments.cache, limit_s=60 * arguments.minutes) as lab:
            lab.long, lab.part = arguments.long, arguments.part
            print(
                f"laboratory: Linux {lab.programs.kernel_release()}, ready in "
                f"{time.monotonic() - started:.1f} s, pace {lab.pace:.1f}", flush=True
            )  # fmt: skip
            for name, made in run_tiers(wanted, lab):
                if isinstance(made, LabUnavailable):
                    rows.append(Row(name, "skipped", str(made)))
                    report[name] = {"skipped": str(made)}
                    continue
                print(f"tier {name}")
                for run in made:
                    show(run)
                rows += [row(run) for run in made]
                failures += [text for run in made for text in failed(run)]
                report[name] = [{**asdict(run), "verdict": run.verdict} for run in made]
                sys.stdout.flush()
            rows.sort(key=lambda one: one.what)
    except LabUnavailable as reason:
        rows = [Row(name, "skipped", str(reason)) for name in wanted]
        report = {"skipped": str(reason)}
    except LabBroken as trouble:
        rows = [Row("laboratory", "FAILED", str(trouble))]
        report = {"failed": str(trouble)}
    target = ROOT / "build" / "test-kernel.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(report, indent=1, default=str) + "\n", encoding="utf-8")
    print(f"\ntest-kernel, {time.monotonic() - started:.0f} s:")
    for one in rows:
        print(f"  {one.what:<12} {one.result:<8} {one.remark}")
    # Once more where a log that is cut short still has it.
    if failures:
        print("\n".join(failures))
    return int(any(one.result == "FAILED" for one in rows))


if __name__ == "__main__":
    sys.exit(main())
