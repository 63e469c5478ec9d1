"""`ugpu explain script.py`: run a script and show which kernels it ran and how long each took. On
request, show the graphs, schedules and code of its runs."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ugpu.compiler.front.explain import KernelReport, RunReport, watch
from ugpu.hcq.errors import UsageError
from ugpu.tools.base.console import Output, count
from ugpu.tools.base.progress import shown
from ugpu.tools.base.scripts import as_program, default_device, execute, say_ignored

PARTS = ("graph", "schedule", "kernels", "code")
ROWS = 12  # of the summary, which should fit on a screen
LONGEST = 32  # letters of a kernel's description


@dataclass
class Line:
    """All launches of one kernel. seconds: total, by the best run of each launch."""

    kernel: KernelReport
    device: str
    launches: int = 0
    seconds: float = 0.0
    first_seconds: float = 0.0
    timed: int = 0  # number of timed launches

    def rate(self, amount: int) -> float | None:
        """Return `amount` per launch, in 1e9 per second."""
        return amount * self.timed / self.seconds / 1e9 if self.seconds and amount else None


def run(
    script: str, arguments: Sequence[str], device: str | None, show: Sequence[str], out: Output
) -> int:
    """Run the script as __main__; its own output goes to stderr if stdout is JSON. Return its exit
    code. UsageError for a missing file or an unknown part."""
    unknown = [part for part in show if part not in PARTS]
    if unknown:
        raise UsageError(f"--show accepts {', '.join(PARTS)}, got {', '.join(unknown)}")
    if not os.path.isfile(script):
        raise UsageError(f"file {script} does not exist")
    spoken = contextlib.redirect_stdout(sys.stderr) if out.as_json else contextlib.nullcontext()
    progress = shown(out, f"explain {script}")
    with (
        default_device(device) as ignored, watch() as runs, as_program(script, arguments), spoken,
        progress,
    ):  # fmt: skip
        code = execute(script)
    lines = summed(runs)
    _say_summary(runs, lines, out)
    say_ignored(ignored, out)
    for number, report in enumerate(runs if show else ()):
        _say(number, report, show, out)
    out.result(
        {
            "exit": code,
            "ignored": ignored(),
            "summary": [_as_json(line, _total(lines)) for line in lines],
            "runs": [asdict(report) for report in runs],
        }
    )
    return code


def summed(runs: Sequence[RunReport]) -> list[Line]:
    """Return each kernel once, longest total time first."""
    lines: dict[tuple[str, str], Line] = {}
    for report in runs:
        for kernel in report.kernels:
            line = lines.setdefault((report.device, kernel.name), Line(kernel, report.device))
            line.launches += 1
            if kernel.seconds is not None and kernel.first_seconds is not None:
                line.timed += 1
                line.seconds += kernel.seconds
                line.first_seconds += kernel.first_seconds
    return sorted(lines.values(), key=lambda line: -line.seconds)


def _total(lines: Sequence[Line]) -> float:
    return sum(line.seconds for line in lines)


def _as_json(line: Line, total: float) -> dict[str, object]:
    return {
        "kernel": line.kernel.name,
        "device": line.device,
        "computes": line.kernel.computes,
        "launches": line.launches,
        "seconds": line.seconds if line.timed else None,
        "first_seconds": line.first_seconds if line.timed else None,
        "share": line.seconds / total if total else None,
        "gigabytes_per_second": line.rate(line.kernel.bytes),
        "gigaflops_per_second": line.rate(line.kernel.flops),
    }


def _say_summary(runs: Sequence[RunReport], lines: Sequence[Line], out: Output) -> None:
    launches, total = sum(line.launches for line in lines), _total(lines)
    devices = ", ".join(sorted({line.device for line in lines})) or "no device"
    head = f"{count(len(runs), 'run')} on {devices}: {count(len(lines), 'kernel')}"
    head += f", {count(launches, 'launch')}"
    out.say(f"{head}, {_time(total)} in them" if total else head, "bold")
    out.table(
        ("share", "time", "launches", "GB/s", "GFLOP/s", "kernel", "computes"),
        [_row(line, total) for line in lines[:ROWS]],
    )
    if len(lines) > ROWS:
        rest = _total(lines[ROWS:])
        more = count(len(lines) - ROWS, "kernel")
        out.say(f"and {more} more: {_time(rest)} ({_share(rest, total)})")
    first = sum(line.first_seconds - line.seconds for line in lines)
    if first > 0:
        out.say(
            f"Times are the best of some runs; first launches took {_time(first)} more (caches, "
            "translation)."
        )
    untimed = launches - sum(line.timed for line in lines)
    if untimed:
        out.say(f"{count(untimed, 'launch')} recorded for replay, not timed.")
    out.say("--ir shows each kernel's IR; --show graph,schedule,code what else there is.")


def _row(line: Line, total: float) -> tuple[str, ...]:
    rates = (line.rate(line.kernel.bytes), line.rate(line.kernel.flops))
    return (
        _share(line.seconds, total) if line.timed else "-",
        _time(line.seconds) if line.timed else "not timed",
        str(line.launches),
        *("-" if rate is None else f"{rate:.3g}" for rate in rates),
        line.kernel.name,
        _cut(line.kernel.computes),
    )


def _cut(words: str) -> str:
    return words if len(words) <= LONGEST else words[: LONGEST - 3] + "..."


def _share(seconds: float, total: float) -> str:
    return f"{100 * seconds / total:.0f}%" if total else "-"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"


def _say(number: int, report: RunReport, show: Sequence[str], out: Output) -> None:
    timed = [kernel.seconds for kernel in report.kernels if kernel.seconds is not None]
    total = _time(sum(timed)) if timed else "not timed"
    out.say()
    kernels = count(len(report.kernels), "kernel")
    out.say(f"run {number} on {report.device}: {kernels}, {total}", "bold")
    if "graph" in show:
        out.say(report.graph)
    if "schedule" in show:
        out.say(report.schedule)
    shown: set[str] = set()
    for kernel in report.kernels:
        took = "not timed" if kernel.seconds is None else _time(kernel.seconds)
        out.say(f"{kernel.name}: {took}", "bold")
        if kernel.name in shown:  # equal names, equal kernels
            continue
        shown.add(kernel.name)
        if "kernels" in show:
            out.say(kernel.ir)
        if "code" in show:
            out.say(kernel.code)
