"""What earlier runs of the benchmarks measured on machines of this kind.

A run is a line of JSON: when, of which commit, the machine's load before it, and the figures. The
file lies outside the checkout, so that all checkouts of a machine share it:
~/.cache/ugpu/bench/<kind of machine>.jsonl, or below UGPU_CACHE. A run is only compared with
others on the same kind of processor and as many of them.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from ugpu.hcq.state.config import config

ROOT = Path(__file__).resolve().parents[2]
LEAST_RUNS = 3  # earlier ones of a figure; fewer say nothing about its spread
WITHIN = 0.05  # of the median: a smaller change is none, however alike the earlier runs were
SPREADS = 3.0  # a change counts from as many median deviations on


@dataclass(frozen=True)
class Figure:
    """One number that a run has measured."""

    name: str
    value: float
    unit: str

    @property
    def is_rate(self) -> bool:
        """Whether more is better."""
        return self.unit.endswith("/s")


@dataclass(frozen=True)
class BenchRun:
    """A run: when (UTC), of which commit, with how much other work on the machine."""

    time: str
    commit: str
    load: float
    figures: Sequence[Figure]

    @classmethod
    def of(cls, results: Sequence[Mapping[str, object]]) -> BenchRun:
        """A run that ends now; without what was skipped."""
        figures = [
            Figure(str(result["name"]), float(str(result["value"])), str(result["unit"]))
            for result in results
            if "skipped" not in result
        ]
        return cls(datetime.now(UTC).isoformat(timespec="seconds"), _commit(), _load(), figures)

    @classmethod
    def parse(cls, line: str) -> BenchRun:
        fields = json.loads(line)
        return cls(**fields | {"figures": [Figure(**figure) for figure in fields["figures"]]})


def _commit() -> str:
    """The checkout's commit, with a + where files differ from it; "" without git."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return ended.stdout.strip()


def _load() -> float:
    return round(os.getloadavg()[2], 2)


def machine_kind(cpuinfo: str, processors: int) -> str:
    """Return a name for the machines that measure alike: the processor's name, family and model,
    and how many there are. cpuinfo: the text of /proc/cpuinfo."""
    fields = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", cpuinfo.partition("\n\n")[0], re.MULTILINE))
    words = [fields.get(key, "") for key in ("model name", "cpu family", "model")]
    name = " ".join(word for word in words if word) or platform.machine()
    return re.sub(r"[^\w]+", "-", f"{name} x{processors}").strip("-")


def history_file() -> Path:
    """The file of this machine's kind."""
    info = Path("/proc/cpuinfo")
    kind = machine_kind(info.read_text() if info.is_file() else "", len(os.sched_getaffinity(0)))
    return config().cache_folder / "bench" / f"{kind}.jsonl"


def append(run: BenchRun, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(run)) + "\n")


def runs(path: Path) -> list[BenchRun]:
    """All runs of a file, the earliest first. One that was cut off while it was written is left
    out."""
    if not path.is_file():
        return []
    lines = path.read_text("utf-8").splitlines(keepends=True)
    return [BenchRun.parse(line) for line in lines if line.endswith("\n")]


@dataclass(frozen=True)
class Change:
    """A figure beside its median in earlier runs. spread: the median distance from that median."""

    figure: Figure
    median: float
    spread: float
    count: int

    @classmethod
    def of(cls, figure: Figure, earlier: Sequence[float]) -> Change:
        median = statistics.median(earlier)
        spread = statistics.median(abs(value - median) for value in earlier)
        return cls(figure, median, spread, len(earlier))

    @property
    def worse(self) -> float:
        """By how much it is worse than the median; negative where it is better."""
        difference = self.figure.value - self.median
        return -difference if self.figure.is_rate else difference

    @property
    def counts(self) -> bool:
        """Whether that is more than the spread of earlier runs explains."""
        return abs(self.worse) > max(SPREADS * self.spread, WITHIN * abs(self.median))

    @property
    def share(self) -> float:
        """By which part of the median it is worse."""
        return self.worse / abs(self.median) if self.median else math.copysign(math.inf, self.worse)

    def __str__(self) -> str:
        figure = self.figure
        return (
            f"{figure.name:<62} {figure.value:>12.6g} {figure.unit:<14} {100 * self.share:+.0f}% "
            f"worse than {self.median:.6g} +- {self.spread:.3g} ({self.count} runs)"
        )


def changes(last: BenchRun, earlier: Sequence[BenchRun]) -> list[Change]:
    """Each figure of the last run that enough earlier ones have, in the same unit."""
    known: dict[tuple[str, str], list[float]] = {}
    for run in earlier:
        for figure in run.figures:
            known.setdefault((figure.name, figure.unit), []).append(figure.value)
    return [
        Change.of(figure, values)
        for figure in last.figures
        if len(values := known.get((figure.name, figure.unit), [])) >= LEAST_RUNS
    ]


def comparison(all_runs: Sequence[BenchRun]) -> tuple[list[str], bool]:
    """What the last run says beside the earlier ones, in lines, and whether anything is worse."""
    if not all_runs:
        return ["no run is recorded on this kind of machine: `make bench` records one"], False
    last, earlier = all_runs[-1], all_runs[:-1]
    found = changes(last, earlier)
    worse = sorted((c for c in found if c.counts and c.worse > 0), key=lambda c: -c.share)
    better = sorted((c for c in found if c.counts and c.worse < 0), key=lambda c: c.share)
    lines = [
        f"run of {last.time}, commit {last.commit}, load {last.load:.2f}; {len(earlier)} earlier"
    ]
    for title, part in (("worse:", worse), ("better:", better)):
        lines += [title, *(f"  {change}" for change in part)] if part else []
    same, fresh = len(found) - len(worse) - len(better), len(last.figures) - len(found)
    lines.append(f"{same} as before, {fresh} with fewer than {LEAST_RUNS} earlier runs")
    return lines, bool(worse)
