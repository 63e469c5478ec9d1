"""`ugpu explain script.py`: run a script and show each run's graph, schedule, kernels and times."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict

from compiler.explain import RunReport, watch
from compiler.runtime import set_default_device
from hcq.errors import UsageError
from tools.console import Output
from tools.scripts import as_program, execute

PARTS = ("graph", "schedule", "kernels", "code")


def run(
    script: str, arguments: Sequence[str], device: str | None, show: Sequence[str], out: Output
) -> int:
    """Run the script as __main__; its own output goes to stderr where stdout is JSON. Returns its
    exit code. UsageError for a file that is not there or a part that we do not know."""
    unknown = [part for part in show if part not in PARTS]
    if unknown:
        raise UsageError(f"--show knows {', '.join(PARTS)}, not {', '.join(unknown)}")
    if not os.path.isfile(script):
        raise UsageError(f"there is no file {script}")
    if device:
        set_default_device(device)
    spoken = contextlib.redirect_stdout(sys.stderr) if out.as_json else contextlib.nullcontext()
    with watch() as runs, as_program(script, arguments), spoken:
        code = execute(script)
    for number, report in enumerate(runs):
        _say(number, report, show, out)
    out.result({"exit": code, "runs": [asdict(report) for report in runs]})
    return code


def _say(number: int, report: RunReport, show: Sequence[str], out: Output) -> None:
    timed = [kernel.seconds for kernel in report.kernels if kernel.seconds is not None]
    total = f"{sum(timed) * 1e6:.0f} us" if timed else "not timed"
    out.say(f"run {number} on {report.device}: {len(report.kernels)} kernels, {total}", "bold")
    if "graph" in show:
        out.say(report.graph)
    if "schedule" in show:
        out.say(report.schedule)
    shown: set[str] = set()
    for kernel in report.kernels:
        took = "not timed" if kernel.seconds is None else f"{kernel.seconds * 1e6:.0f} us"
        out.say(f"{kernel.name}: {took}", "bold")
        if kernel.name in shown:  # equal names, equal kernels
            continue
        shown.add(kernel.name)
        if "kernels" in show:
            out.say(kernel.ir)
        if "code" in show:
            out.say(kernel.code)
