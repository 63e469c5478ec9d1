"""`ugpu tune script.py`: run a script and search the best choices for each of its kernels."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from ugpu.compiler.search.tune import described, tuning
from ugpu.hcq.errors import UsageError
from ugpu.tools.base.console import Output
from ugpu.tools.base.progress import shown
from ugpu.tools.base.scripts import as_program, default_device, execute, say_ignored


@dataclass(frozen=True)
class TuneOptions:
    """beam: how many of the best candidates are varied. budget_s: seconds in total. details:
    whether every trial is shown."""

    device: str | None
    beam: int
    budget_s: float
    details: bool


def run(script: str, arguments: Sequence[str], options: TuneOptions, out: Output) -> int:
    """Run the script as __main__ while its kernels are searched. Return its exit code. UsageError
    for a missing file."""
    if not os.path.isfile(script):
        raise UsageError(f"file {script} does not exist")
    spoken = contextlib.redirect_stdout(sys.stderr) if out.as_json else contextlib.nullcontext()
    searching = tuning(options.beam, options.budget_s)
    progress = shown(out, f"tune {script}")
    with (
        default_device(options.device) as ignored, spoken, progress, searching as report,
        as_program(script, arguments),
    ):  # fmt: skip
        code = execute(script)
    say_ignored(ignored, out)
    for kernel in report.kernels:
        out.say(kernel.summary())
        for line in kernel.details() if options.details else ():
            out.say(f"    {line}")
    better, searched, without = report.counts()
    line = f"{better} of {searched} kernels have better choices than the default now"
    out.say(line + (f"; {without} without choices" if without else ""))
    out.say(f"ended after {report.seconds:.1f} of {report.budget_s:g} s: {report.ended}")
    out.result(
        {
            "exit": code,
            "ignored": ignored(),
            "better": better,
            "searched": searched,
            "without_choices": without,
            "seconds": report.seconds,
            "ended": report.ended,
            "kernels": described(report),
        }
    )
    return code
