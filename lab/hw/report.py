"""What a hardware run found: results, and the two files they become."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

OUTCOMES = ("passed", "failed", "measured", "skipped")


@dataclass(frozen=True)
class Result:
    """One line of a report.

    outcome: passed, failed, measured (a figure without verdict) or skipped (with `remark` saying
    why). goal: what the ratio to the peer, CUDA through PyTorch on the same GPU, must be, such as
    ">= 0.95"; it is judged only where a peer was measured.
    """

    section: str
    name: str
    outcome: str
    value: float | None = None
    unit: str = ""
    remark: str = ""
    goal: str = ""
    peer: float | None = None

    @property
    def ratio(self) -> float | None:
        """Ours over the peer's."""
        if self.value is None or not self.peer:
            return None
        return self.value / self.peer

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None without a goal or a peer."""
        match = re.fullmatch(r"([<>])= ([\d.]+)", self.goal)
        if match is None or self.ratio is None:
            return None
        limit = float(match[2])
        return self.ratio <= limit if match[1] == "<" else self.ratio >= limit

    def as_json(self) -> dict[str, object]:
        """Every fact, the derived ones too."""
        return {**asdict(self), "ratio": self.ratio, "met": self.met}


@dataclass(frozen=True)
class Report:
    """A whole run. facts: of the device, the machine and the software, for who reads it later.

    diagnostics: what was gathered about failures, by section. unfinished: sections that are still
    to come, where a report is written before its end.
    """

    device: str
    facts: Mapping[str, object]
    results: Sequence[Result]
    seconds: float
    diagnostics: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unfinished: Sequence[str] = ()

    @property
    def virtual(self) -> bool:
        """Whether it ran on a model: then its figures say nothing of any GPU."""
        return self.device.startswith("virtual:")

    @property
    def failures(self) -> list[Result]:
        """The results that failed."""
        return [result for result in self.results if result.outcome == "failed"]

    @property
    def stem(self) -> str:
        """The files' name without its ending, such as nvrm-h200-580.142."""
        kind = self.device.partition(":")[0]
        chip = str(self.facts.get("gpu") or self.device.partition(":")[2] or "device")
        driver = str(self.facts.get("driver") or "")
        return "-".join(filter(None, (slug(kind), slug(chip), slug(driver))))

    def as_json(self) -> dict[str, object]:
        """The whole report."""
        return {
            "format": 1,
            "device": self.device,
            "virtual": self.virtual,
            "facts": dict(self.facts),
            "seconds": round(self.seconds, 1),
            "failed": len(self.failures),
            "unfinished": list(self.unfinished),
            "results": [result.as_json() for result in self.results],
            "diagnostics": {name: list(lines) for name, lines in self.diagnostics.items()},
        }

    def markdown(self) -> str:
        """The report as a page with one table per section."""
        lines = [f"# {self.facts.get('gpu') or self.device} by `make hw`", ""]
        if self.virtual:
            lines += ["This is a model of the chip: nothing here was measured on a GPU.", ""]
        lines += [f"- {name}: {value}" for name, value in self.facts.items()]
        lines += [f"- device: `{self.device}`", f"- took: {self.seconds:.0f} s", ""]
        counts = (f"{self._count(o)} {o}" for o in OUTCOMES if self._count(o))
        lines += [f"**{', '.join(counts) or 'nothing ran'}**"]
        for section in dict.fromkeys(result.section for result in self.results):
            lines += ["", f"## {section}", "", *_table(self._of(section))]
        if self.unfinished:
            lines += ["", f"Not run yet when this was written: {', '.join(self.unfinished)}."]
        for name, told in self.diagnostics.items():
            lines += ["", f"## Diagnostics: {name}", "", "```", *told, "```"]
        return "\n".join(lines) + "\n"

    def _of(self, section: str) -> list[Result]:
        return [result for result in self.results if result.section == section]

    def _count(self, outcome: str) -> int:
        return sum(result.outcome == outcome for result in self.results)

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write both files; return where they are."""
        folder.mkdir(parents=True, exist_ok=True)
        data, page = folder / f"{self.stem}.json", folder / f"{self.stem}.md"
        data.write_text(json.dumps(self.as_json(), indent=1) + "\n", encoding="utf-8")
        page.write_text(self.markdown(), encoding="utf-8")
        return data, page


def slug(text: str) -> str:
    """A name as part of a file's name."""
    text = re.sub(r"^nvidia\s+", "", text.strip().lower())
    return re.sub(r"[^a-z0-9.]+", "-", text).strip("-.")


def _table(results: Iterable[Result]) -> list[str]:
    lines = ["| what | result | CUDA | ratio | goal | remark |", "|---|---|---|---|---|---|"]
    for result in results:
        mark = "" if result.met is None else (" met" if result.met else " MISSED")
        value = "" if result.value is None else f"{result.value:.4g} {result.unit}".strip()
        shown = result.outcome if result.outcome != "measured" else ""
        cells = (
            result.name,
            " ".join(filter(None, (shown.upper() if shown == "failed" else shown, value))),
            "" if result.peer is None else f"{result.peer:.4g} {result.unit}".strip(),
            "" if result.ratio is None else f"{result.ratio:.2f}",
            f"{result.goal}{mark}",
            result.remark,
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines
